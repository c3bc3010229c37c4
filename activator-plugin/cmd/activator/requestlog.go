package main

import (
	"net/http"
	"os"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	activatorhandler "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/apis/serving"
	pkghttp "knative.dev/serving/pkg/http"
	"knative.dev/serving/pkg/logging"
	o11yconfigmap "knative.dev/serving/pkg/observability/configmap"
)

// newRequestLogOrDie returns a handler that logs nothing until the observability config
// map enables it.
func newRequestLogOrDie(next http.Handler, logger *zap.SugaredLogger) *pkghttp.RequestLogHandler {
	h, err := pkghttp.NewRequestLogHandler(next, logging.NewSyncFileWriter(os.Stdout), "", requestLogInput, false)
	if err != nil {
		logger.Fatalw("Failed to set up the request log", zap.Error(err))
	}
	return h
}

func updateRequestLog(h *pkghttp.RequestLogHandler, logger *zap.SugaredLogger) func(*corev1.ConfigMap) {
	return func(cm *corev1.ConfigMap) {
		cfg, err := o11yconfigmap.Parse(cm)
		if err != nil {
			logger.Errorw("The request log stays as it is: the observability settings are not valid", "configmap", cm.Name, zap.Error(err))
			return
		}
		template := ""
		if cfg.EnableRequestLog {
			template = cfg.RequestLogTemplate
		}
		if err := h.SetTemplate(template); err != nil {
			logger.Errorw("The request log stays as it is: its template is not valid", "template", template, zap.Error(err))
			return
		}
		logger.Infow("Updated the request log", "template", template)
	}
}

// requestLogInput requires that the context handler has set the revision.
func requestLogInput(r *http.Request, resp *pkghttp.RequestLogResponse) *pkghttp.RequestLogTemplateInput {
	rev := activatorhandler.RevisionFrom(r.Context())
	return &pkghttp.RequestLogTemplateInput{
		Request:  r,
		Response: resp,
		Revision: &pkghttp.RequestLogRevision{
			Name:          rev.Name,
			Namespace:     rev.Namespace,
			Service:       rev.Labels[serving.ServiceLabelKey],
			Configuration: rev.Labels[serving.ConfigurationLabelKey],
		},
	}
}
