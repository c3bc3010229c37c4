package main

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"knative.dev/pkg/injection/clients/dynamicclient"
	"knative.dev/pkg/system"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// placementTimeout bounds how long the activator's start waits for placement policies. After that, requests go as if
// there were none, until they have been read.
const placementTimeout = 5 * time.Second

// policies are the cluster's placement policies. The zero value has none.
type policies struct{ followed *tapp.Policies }

func newPolicies(ctx context.Context, kube kubernetes.Interface, podName string, live *settings.Live, events record.EventRecorder, mp metric.MeterProvider, logger *zap.SugaredLogger) (policies, error) {
	client, ok := ctx.Value(dynamicclient.Key{}).(dynamic.Interface)
	if !ok {
		return policies{}, nil
	}
	followed, err := tapp.NewPolicies(tapp.PoliciesOptions{
		Kube: kube, Dynamic: client, Clock: clock.RealClock{}, Logger: logger, MeterProvider: mp, Events: events,
		Activator: types.NamespacedName{Namespace: system.Namespace(), Name: podName},
		Platform:  platform(live),
	})
	return policies{followed}, err
}

// platform returns a policy that follows the placement in the settings.
func platform(live *settings.Live) placement.Policy {
	named := map[api.Placement]placement.Policy{}
	for _, name := range api.Placements {
		named[name] = placement.Named(name)
	}
	return func(q *placement.Query, candidates []placement.Candidate) int {
		return named[live.Placement()](q, candidates)
	}
}

// programs returns nil if there are none. A nil *tapp.Policies in an interface would not be nil.
func (p policies) programs() placement.Programs {
	if p.followed == nil {
		return nil
	}
	return p.followed
}

// start follows the policies until ctx is done. It waits up to placementTimeout until they and the other caches are
// read, because an earlier request could go where it may not.
func (p policies) start(ctx context.Context, logger *zap.SugaredLogger, others ...cache.InformerSynced) {
	if p.followed == nil {
		return
	}
	go p.followed.Run(ctx)
	waiting, cancel := context.WithTimeout(ctx, placementTimeout)
	defer cancel()
	err := p.followed.WaitUntilRead(waiting)
	if err == nil && !cache.WaitForCacheSync(waiting.Done(), others...) {
		err = fmt.Errorf("reading pods and settings: %w", context.Cause(waiting))
	}
	if err != nil {
		logger.Warnw("Placement policies, pods or settings were not read in time; until all are read, requests are placed as if there were no placement policies", zap.Error(err))
	}
}
