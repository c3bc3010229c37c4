package invocation

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/config"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	autoscalerconfig "knative.dev/serving/pkg/autoscaler/config"
)

const (
	// alwaysInPath is the target burst capacity with which the autoscaler keeps the activator
	// in the path. With any other it takes the activator out when there are pods enough.
	alwaysInPath = -1
	// pathSettles is how long it takes until no request goes past the activator any more that
	// was to be put in the path: the autoscaler's, the ingress' and every gateway's time.
	pathSettles = time.Minute
)

// autoscaler is what the ConfigMap config-autoscaler says of revisions that do not say
// otherwise.
type autoscaler struct {
	capacity float64
	class    string
	since    time.Time
}

// path knows whether requests can reach the pods of a revision past the activator.
type path struct{ otherwise atomic.Pointer[autoscaler] }

// newPath is as if the ConfigMap were empty.
func newPath() (*path, error) {
	p := &path{}
	return p, p.follow(&corev1.ConfigMap{}, time.Time{})
}

// follow takes in the ConfigMap. What is not valid changes nothing, as for the autoscaler.
func (p *path) follow(cm *corev1.ConfigMap, now time.Time) error {
	cfg, err := autoscalerconfig.NewConfigFromConfigMap(cm)
	if err != nil {
		return err
	}
	last := p.otherwise.Load()
	if last == nil || last.capacity != cfg.TargetBurstCapacity || last.class != cfg.PodAutoscalerClass {
		p.otherwise.Store(&autoscaler{cfg.TargetBurstCapacity, cfg.PodAutoscalerClass, writtenAt(cm, now)})
	}
	return nil
}

// writtenAt is when an object was written last, or otherwise when the API server did not tell:
// an activator that starts has not seen it change.
func writtenAt(cm *corev1.ConfigMap, otherwise time.Time) time.Time {
	var last time.Time
	for _, by := range cm.ManagedFields {
		if by.Time != nil && by.Time.After(last) {
			last = by.Time.Time
		}
	}
	if last.IsZero() {
		return otherwise
	}
	return last
}

// pathError says why requests can go past the activator.
type pathError struct{ where, is, want string }

func (e *pathError) Error() string { return fmt.Sprintf("%s is %.64q, want %s", e.where, e.is, e.want) }

const (
	wantCapacity = `"-1", which the annotation ` + autoscaling.TargetBurstCapacityKey + " on the revision template can say"
	wantClass    = autoscaling.KPA + ", which alone can keep the activator in the path"
)

// bypass says whether requests can reach the pods of a revision past the activator, or have
// been able to so lately that some may still be in them; the former with why.
func (p *path) bypass(rev *v1.Revision, now time.Time) (bool, *pathError) {
	otherwise := p.otherwise.Load()
	if key, class, ok := autoscaling.ClassAnnotation.Get(rev.Annotations); ok && class != autoscaling.KPA {
		return true, &pathError{"annotation " + key, class, wantClass}
	} else if !ok && otherwise.class != autoscaling.KPA {
		return true, &pathError{"pod-autoscaler-class of ConfigMap " + autoscalerconfig.ConfigName, otherwise.class, wantClass}
	}
	if key, value, ok := autoscaling.TargetBurstCapacityAnnotation.Get(rev.Annotations); ok {
		if capacity, err := strconv.ParseFloat(value, 64); err != nil || capacity != alwaysInPath {
			return true, &pathError{"annotation " + key, value, wantCapacity}
		}
		return false, nil
	}
	if otherwise.capacity != alwaysInPath {
		return true, &pathError{"target-burst-capacity of ConfigMap " + autoscalerconfig.ConfigName,
			strconv.FormatFloat(otherwise.capacity, 'g', -1, 64), wantCapacity}
	}
	return now.Sub(otherwise.since) < pathSettles+longest(rev), nil
}

// longest is how long a request of a revision may run.
func longest(rev *v1.Revision) time.Duration {
	return time.Duration(ptr.Deref(rev.Spec.TimeoutSeconds, config.DefaultRevisionTimeoutSeconds)) * time.Second
}

// FollowAutoscaler takes in the ConfigMap config-autoscaler, each time that it changes.
func (m *Manager) FollowAutoscaler(cm *corev1.ConfigMap) {
	if err := m.path.follow(cm, m.clock.Now()); err != nil {
		m.logger.Warnw("Which functions have the activator always in their path stays as it is: the autoscaler's settings are not valid",
			"configmap", cm.Name, zap.Error(err))
	}
}

// bypassed is bypass, and tells of it.
func (m *Manager) bypassed(rev *v1.Revision) bool {
	bypassed, why := m.path.bypass(rev, m.clock.Now())
	if why != nil {
		m.warn(rev, eventNotInPath, why.where, "The function lends nothing and is not learned from: its requests can go past the activator", why)
	}
	return bypassed
}
