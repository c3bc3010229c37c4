// Package scheduler is a plugin of the Kubernetes scheduler that chooses nodes for the pods of functions, by what the
// nodes lend and lack, and by placement policies. It leaves other pods alone.
package scheduler

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/pkg/settings"
)

// Name is the plugin's name in a profile.
const Name = "Libra"

// readTimeout bounds how long the scheduler waits at its start for the placement policies. After it, pods are placed as
// if there were no policies until these have been read.
const readTimeout = 5 * time.Second

// orders say in which order nodes should get a function's pods. *tapp.Policies implements it.
type orders interface {
	OrderOf(revision types.NamespacedName, tag string) *tapp.Order
}

// live are the cluster's settings. *settings.Live implements it.
type live interface {
	For(namespace string) settings.Settings
	NamespaceSource(namespace string) api.Source
}

// Plugin is the plugin in a scheduler's profile.
type Plugin struct {
	clock    clock.PassiveClock
	follower *follower
	orders   orders
	settings live
	waiting  *waiting
	metrics  *metrics
}

var (
	_ fwk.PreFilterPlugin   = &Plugin{}
	_ fwk.FilterPlugin      = &Plugin{}
	_ fwk.EnqueueExtensions = &Plugin{}
	_ fwk.PreScorePlugin    = &Plugin{}
	_ fwk.ScorePlugin       = &Plugin{}
	_ fwk.ReservePlugin     = &Plugin{}
	_ fwk.SignPlugin        = &Plugin{}
)

// newPlugin returns a plugin that follows Redis and the cluster until ctx is done. It retries what it cannot reach.
// Without that, pods are placed as by the default scheduler.
func newPlugin(ctx context.Context, server redisconn.Server, handle fwk.Handle) (*Plugin, error) {
	provider, err := meterProvider()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(provider)
	if err != nil {
		return nil, err
	}
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), Name))
	logger := sugared(klog.FromContext(ctx))
	client, err := dynamic.NewForConfig(handle.KubeConfig())
	if err != nil {
		return nil, fmt.Errorf("plugin %s: making a client for policies: %w", Name, err)
	}
	waiting := newWaiting(klog.FromContext(ctx), handle)
	if _, err := handle.SharedInformerFactory().Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: waiting.gone}); err != nil {
		return nil, fmt.Errorf("plugin %s: following pods: %w", Name, err)
	}
	policies, err := tapp.NewPolicies(tapp.PoliciesOptions{
		Kube: handle.ClientSet(), Dynamic: client, Clock: clock.RealClock{}, Logger: logger, MeterProvider: provider, Changed: waiting.retry,
	})
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", Name, err)
	}
	live, err := followSettings(handle.ClientSet(), client, klog.FromContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", Name, err)
	}
	redis := pool.NewRedis(server)
	p := &Plugin{
		clock: clock.RealClock{}, orders: policies, settings: live, waiting: waiting, metrics: m,
		follower: &follower{source: redis, clock: clock.RealClock{}, metrics: m},
	}
	go live.Run(ctx)
	go policies.Run(ctx)
	go func() {
		p.follower.run(ctx)
		if err := redis.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to close Redis")
		}
	}()
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := policies.WaitUntilRead(reading); err != nil {
		klog.FromContext(ctx).Error(err, "Placement policies were not read in time; until they are, pods are placed as if there were none")
	}
	return p, nil
}

// Name implements fwk.Plugin.
func (p *Plugin) Name() string { return Name }

// cycle is what is known about a pod while it is scheduled.
type cycle struct {
	order *tapp.Order // nil if no policy applies to it

	role   role
	milli  int64      // how much it would borrow, or can lend
	domain string     // the domain that its namespace lends in
	source api.Source // of its namespace
	known  *picture
}

const cycleKey fwk.StateKey = Name

// Clone implements fwk.StateData. Nothing in a cycle changes after PreFilter.
func (c *cycle) Clone() fwk.StateData { return c }

// cycleOf returns nil for a pod that the plugin has nothing to say about.
func cycleOf(state fwk.CycleState) *cycle {
	data, err := state.Read(cycleKey)
	if err != nil {
		return nil
	}
	return data.(*cycle)
}

// orderOf returns nil for a function's pod that no policy applies to.
func (p *Plugin) orderOf(pod *corev1.Pod) *tapp.Order {
	revision := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[serving.RevisionLabelKey]}
	return p.orders.OrderOf(revision, pod.Labels[api.PlacementLabel])
}

// allocation returns how much CPU the pod's user container is owed, or 0 if it has no limit.
func allocation(pod *corev1.Pod) int64 {
	if c := api.UserContainerOf(pod); c != nil {
		return c.Resources.Limits.Cpu().MilliValue()
	}
	return 0
}

// configurationOf returns the function that a pod belongs to, as observations name it.
func configurationOf(pod *corev1.Pod) string {
	return pod.Namespace + "/" + pod.Labels[serving.ConfigurationLabelKey]
}
