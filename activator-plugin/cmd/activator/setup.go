package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	netcfg "knative.dev/networking/pkg/config"
	"knative.dev/pkg/injection"
	"knative.dev/pkg/injection/sharedmain"
	pkglogging "knative.dev/pkg/logging"
	"knative.dev/pkg/logging/logkey"
	pkgnet "knative.dev/pkg/network"
	"knative.dev/pkg/system"
	"knative.dev/pkg/version"
	"knative.dev/serving/pkg/activator/certificate"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	activatornet "knative.dev/serving/pkg/activator/net"
	apiconfig "knative.dev/serving/pkg/apis/config"
)

// config is the environment of the stock activator. If a required variable is missing,
// the activator stops, like stock. Libra's own settings are in libra.go.
type config struct {
	PodName string `split_words:"true" required:"true"`
	PodIP   string `split_words:"true" required:"true"`

	MaxIdleProxyConns        int `split_words:"true" default:"1000"`
	MaxIdleProxyConnsPerHost int `split_words:"true" default:"100"`

	ProbeTimeout   string `split_words:"true" default:"300ms"`
	ProbeFrequency string `split_words:"true" default:"200ms"`
}

func logInjection() {
	log.Printf("Injected: %d clients, %d informer factories, %d informers", len(injection.Default.GetClients()),
		len(injection.Default.GetInformerFactories()), len(injection.Default.GetInformers()))
}

// waitForAPIServer gives the pod's network a minute to come up.
func waitForAPIServer(ctx context.Context, kube kubernetes.Interface) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, time.Second, time.Minute, true, func(context.Context) (bool, error) {
		if last = version.CheckMinimumVersion(kube.Discovery()); last != nil {
			log.Print("Asking the API server for its version again in a second: ", last)
		}
		return last == nil, nil
	})
	if err != nil {
		return last
	}
	return nil
}

func newLoggerOrDie(ctx context.Context, podName string) (*zap.SugaredLogger, zap.AtomicLevel) {
	cfg, err := sharedmain.GetLoggingConfig(ctx)
	if err != nil {
		log.Fatal("The logging settings cannot be read: ", err)
	}
	logger, level := pkglogging.NewLoggerFromConfig(cfg, component)
	return logger.With(zap.String(logkey.ControllerType, component), zap.String(logkey.Pod, podName)), level
}

func networkConfigOrDie(ctx context.Context, kube kubernetes.Interface, logger *zap.SugaredLogger) *netcfg.Config {
	cm, err := kube.CoreV1().ConfigMaps(system.Namespace()).Get(ctx, netcfg.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		logger.Fatalw("The network settings cannot be read", "configmap", netcfg.ConfigMapName, zap.Error(err))
	}
	cfg, err := netcfg.NewConfigFromConfigMap(cm)
	if err != nil {
		logger.Fatalw("The network settings are not valid", "configmap", netcfg.ConfigMapName, zap.Error(err))
	}
	return cfg
}

// newTransportOrDie returns the transport to the pods and, if system-internal-tls is
// enabled, the certificates.
func newTransportOrDie(ctx context.Context, env config, network *netcfg.Config, logger *zap.SugaredLogger) (http.RoundTripper, *certificate.CertCache) {
	logger.Debugw("Connecting to pods", "maxIdle", env.MaxIdleProxyConns, "maxIdlePerHost", env.MaxIdleProxyConnsPerHost)
	if !network.SystemInternalTLSEnabled() {
		return pkgnet.NewProxyAutoTransport(env.MaxIdleProxyConns, env.MaxIdleProxyConnsPerHost), nil
	}
	logger.Info("Connecting to pods with TLS, and serving TLS, because system-internal-tls is enabled")
	certs, err := certificate.NewCertCache(ctx)
	if err != nil {
		logger.Fatalw("Failed to get the certificates for system-internal-tls", zap.Error(err))
	}
	return pkgnet.NewProxyAutoTLSTransport(env.MaxIdleProxyConns, env.MaxIdleProxyConnsPerHost, certs.TLSContext()), certs
}

func setProbeSettingsOrDie(env config, logger *zap.SugaredLogger) {
	parse := func(name, value string) time.Duration {
		d, err := time.ParseDuration(value)
		if err != nil {
			logger.Fatalw(name+" is not a duration such as 300ms", "value", value, zap.Error(err))
		}
		return d
	}
	activatornet.SetProbeSettings(parse("PROBE_TIMEOUT", env.ProbeTimeout), parse("PROBE_FREQUENCY", env.ProbeFrequency))
}

// timeouts returns how long a request may take in all, until its response begins, and
// between two writes of its response. The latter two are unbounded at 0, which is what a
// revision gets that does not set them.
func timeouts(r *http.Request) (all, responseStart, idle time.Duration) {
	rev := activatorhandler.RevisionFrom(r.Context())
	if rev == nil {
		return apiconfig.DefaultRevisionTimeoutSeconds * time.Second,
			apiconfig.DefaultRevisionResponseStartTimeoutSeconds * time.Second,
			apiconfig.DefaultRevisionIdleTimeoutSeconds * time.Second
	}
	return seconds(rev.Spec.TimeoutSeconds, apiconfig.DefaultRevisionTimeoutSeconds),
		seconds(rev.Spec.ResponseStartTimeoutSeconds, 0),
		seconds(rev.Spec.IdleTimeoutSeconds, 0)
}

func seconds(s *int64, otherwise int64) time.Duration {
	if s != nil {
		otherwise = *s
	}
	return time.Duration(otherwise) * time.Second
}

// shutdown sends the telemetry that is still unsent.
func shutdown(logger *zap.SugaredLogger, what string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		logger.Errorw("Failed to shut down the exporter of "+what+"; what it had not exported is lost", zap.Error(err))
	}
}

// flush ignores errors: there is nobody left to tell.
func flush(logger *zap.SugaredLogger) {
	_ = logger.Sync()
	_ = os.Stdout.Sync()
	_ = os.Stderr.Sync()
}
