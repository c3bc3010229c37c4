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

// PathError says why requests can go past the activator.
type PathError struct {
	where, is, want string
	// Annotation on the revision template keeps the activator in the path with Value.
	Annotation, Value string
}

func (e *PathError) Error() string { return fmt.Sprintf("%s is %.64q, want %s", e.where, e.is, e.want) }

// Bypass says why requests can go past the activator to a revision's pods, or nil. autoscaler is the ConfigMap
// config-autoscaler.
func Bypass(rev *v1.Revision, autoscaler *corev1.ConfigMap) (*PathError, error) {
	p, err := newPath()
	if err == nil {
		err = p.follow(autoscaler, time.Time{})
	}
	if err != nil {
		return nil, err
	}
	_, why := p.bypass(rev, time.Now())
	return why, nil
}

const (
	wantCapacity = `"-1", which the annotation ` + autoscaling.TargetBurstCapacityKey + " on the revision template can say"
	wantClass    = autoscaling.KPA + ", which alone can keep the activator in the path"
)

// bypass says whether requests can reach the pods of a revision past the activator, or have
// been able to so lately that some may still be in them; the former with why.
func (p *path) bypass(rev *v1.Revision, now time.Time) (bool, *PathError) {
	otherwise := p.otherwise.Load()
	if key, class, ok := autoscaling.ClassAnnotation.Get(rev.Annotations); ok && class != autoscaling.KPA {
		return true, &PathError{"annotation " + key, class, wantClass, key, autoscaling.KPA}
	} else if !ok && otherwise.class != autoscaling.KPA {
		return true, &PathError{"pod-autoscaler-class of ConfigMap " + autoscalerconfig.ConfigName, otherwise.class, wantClass, autoscaling.ClassAnnotationKey, autoscaling.KPA}
	}
	capacity := strconv.Itoa(alwaysInPath)
	if key, value, ok := autoscaling.TargetBurstCapacityAnnotation.Get(rev.Annotations); ok {
		if is, err := strconv.ParseFloat(value, 64); err != nil || is != alwaysInPath {
			return true, &PathError{"annotation " + key, value, wantCapacity, key, capacity}
		}
		return false, nil
	}
	if otherwise.capacity != alwaysInPath {
		return true, &PathError{"target-burst-capacity of ConfigMap " + autoscalerconfig.ConfigName,
			strconv.FormatFloat(otherwise.capacity, 'g', -1, 64), wantCapacity, autoscaling.TargetBurstCapacityKey, capacity}
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
