package main

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"knative.dev/pkg/injection/clients/dynamicclient"
	"knative.dev/pkg/system"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/settings"
)

// placementTimeout bounds how long the activator's start waits for placement policies. After that, requests go as if
// there were none, until they have been read.
const placementTimeout = 5 * time.Second

func newPolicies(ctx context.Context, kube kubernetes.Interface, podName string, live *settings.Live, events record.EventRecorder, mp metric.MeterProvider, logger *zap.SugaredLogger) (*tapp.Policies, error) {
	return tapp.NewPolicies(tapp.PoliciesOptions{
		Kube: kube, Dynamic: dynamicclient.Get(ctx), Clock: clock.RealClock{}, Logger: logger, MeterProvider: mp, Events: events,
		Activator: types.NamespacedName{Namespace: system.Namespace(), Name: podName},
		Platform:  platform(live),
	})
}

// platform returns a policy that follows the placement in the settings.
func platform(live *settings.Live) placement.Policy {
	named := placement.AllNamed()
	return func(q *placement.Query, candidates []placement.Candidate) int {
		return named[live.Placement()](q, candidates)
	}
}

// startPolicies follows the policies until ctx is done. It waits up to placementTimeout until they and the other caches are
// read, because an earlier request could go where it may not.
func startPolicies(ctx context.Context, p *tapp.Policies, logger *zap.SugaredLogger, others ...cache.InformerSynced) {
	go p.Run(ctx)
	waiting, cancel := context.WithTimeout(ctx, placementTimeout)
	defer cancel()
	err := p.WaitUntilRead(waiting)
	if err == nil && !cache.WaitForCacheSync(waiting.Done(), others...) {
		err = fmt.Errorf("reading pods and settings: %w", context.Cause(waiting))
	}
	if err != nil {
		logger.Warnw("Placement policies, pods or settings were not read in time; until all are read, requests are placed as if there were no placement policies", zap.Error(err))
	}
}
