package invocation

import (
	"fmt"
	"strconv"
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
	// alwaysInPath is the target burst capacity with which the autoscaler keeps the activator in the path.
	// With any other, it takes the activator out when there are enough pods.
	alwaysInPath = -1
	// pathSettles is how long requests may still bypass the activator after it is to be put in the path: the
	// time that the autoscaler, the ingress and every gateway take.
	pathSettles = time.Minute
)

// autoscaler has the defaults that the ConfigMap config-autoscaler sets for revisions that do not say
// a.
type autoscaler struct {
	capacity float64
	class    string
	since    time.Time
}

// autoscalerOf returns the defaults that a ConfigMap sets, which has been in force since it was last written, or since
// now if that is not known. The autoscaler takes no ConfigMap that is not valid.
func autoscalerOf(cm *corev1.ConfigMap, now time.Time) (*autoscaler, error) {
	cfg, err := autoscalerconfig.NewConfigFromConfigMap(cm)
	if err != nil {
		return nil, err
	}
	return &autoscaler{cfg.TargetBurstCapacity, cfg.PodAutoscalerClass, writtenAt(cm, now)}, nil
}

// writtenAt returns when the ConfigMap was last written, since an activator that has just started did not see
// it change. It returns otherwise if the API server does not say when.
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

// PathError says why requests can bypass the activator.
type PathError struct {
	where, is, want string
	// Annotation, set to Value on the revision template, keeps the activator in the path.
	Annotation, Value string
}

func (e *PathError) Error() string { return fmt.Sprintf("%s is %.64q, want %s", e.where, e.is, e.want) }

// Bypass returns why requests can bypass the activator to a revision's pods, or nil. autoscaler is the
// ConfigMap config-autoscaler; Bypass fails if it is not valid.
func Bypass(rev *v1.Revision, autoscaler *corev1.ConfigMap) (*PathError, error) {
	a, err := autoscalerOf(autoscaler, time.Time{})
	if err != nil {
		return nil, err
	}
	_, why := a.bypass(rev, time.Now())
	return why, nil
}

const (
	wantCapacity = `"-1", which the annotation ` + autoscaling.TargetBurstCapacityKey + " on the revision template can set"
	wantClass    = autoscaling.KPA + ", the only class that can keep the activator in the path"
)

// bypass reports whether requests can bypass the activator to the pods of a revision, or could so recently
// that some may still be there. If they still can, it also returns why.
func (a *autoscaler) bypass(rev *v1.Revision, now time.Time) (bool, *PathError) {
	if key, class, ok := autoscaling.ClassAnnotation.Get(rev.Annotations); ok && class != autoscaling.KPA {
		return true, &PathError{"annotation " + key, class, wantClass, key, autoscaling.KPA}
	} else if !ok && a.class != autoscaling.KPA {
		return true, &PathError{"pod-autoscaler-class of ConfigMap " + autoscalerconfig.ConfigName, a.class, wantClass, autoscaling.ClassAnnotationKey, autoscaling.KPA}
	}
	capacity := strconv.Itoa(alwaysInPath)
	if key, value, ok := autoscaling.TargetBurstCapacityAnnotation.Get(rev.Annotations); ok {
		if is, err := strconv.ParseFloat(value, 64); err != nil || is != alwaysInPath {
			return true, &PathError{"annotation " + key, value, wantCapacity, key, capacity}
		}
		return false, nil
	}
	if a.capacity != alwaysInPath {
		return true, &PathError{"target-burst-capacity of ConfigMap " + autoscalerconfig.ConfigName,
			strconv.FormatFloat(a.capacity, 'g', -1, 64), wantCapacity, autoscaling.TargetBurstCapacityKey, capacity}
	}
	return now.Sub(a.since) < pathSettles+longest(rev), nil
}

// longest returns how long a request to a revision may run.
func longest(rev *v1.Revision) time.Duration {
	return time.Duration(ptr.Deref(rev.Spec.TimeoutSeconds, config.DefaultRevisionTimeoutSeconds)) * time.Second
}

// FollowAutoscaler applies the ConfigMap config-autoscaler. It must be called each time that this changes. One that is
// not valid changes nothing, as with the autoscaler.
func (m *Manager) FollowAutoscaler(cm *corev1.ConfigMap) {
	a, err := autoscalerOf(cm, m.clock.Now())
	if err != nil {
		m.logger.Warnw("Ignoring the autoscaler's settings, which are not valid; the earlier ones still decide whether requests can go past the activator",
			"configmap", cm.Name, zap.Error(err))
		return
	}
	// A change that does not concern the path does not begin its time anew.
	if last := m.autoscaler.Load(); last.capacity != a.capacity || last.class != a.class {
		m.autoscaler.Store(a)
	}
}

// bypassed is bypass, and warns of a bypass.
func (m *Manager) bypassed(rev *v1.Revision) bool {
	bypassed, why := m.autoscaler.Load().bypass(rev, m.clock.Now())
	if why != nil {
		m.warn(rev, eventNotInPath, why.where, "The function lends nothing and is not learned from: its requests can go past the activator", why)
	}
	return bypassed
}
