package settings

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

var harvestPolicies = v1alpha1.GroupVersion.WithResource("harvestpolicies")

// policy is what a HarvestPolicy sets. A zero field is not set.
type policy struct {
	mode, maxMode api.Mode
	source        api.Source
	minLoan       *time.Duration
	bounds        Bounds
}

// policies are the HarvestPolicies of namespaces. Where the cluster has no such kind there are none.
type policies struct {
	byNamespace sync.Map
	absent      atomic.Bool
}

func (p *policies) of(namespace string) *policy {
	if found, ok := p.byNamespace.Load(namespace); ok {
		return found.(*policy)
	}
	return nil
}

// under are the settings of a namespace with the policy.
func (s Settings) under(p *policy) Settings {
	if p.mode != "" {
		s.Mode = p.mode
	}
	if p.maxMode != "" {
		s.MaxMode = s.MaxMode.AtMost(p.maxMode)
	}
	if p.source != "" {
		s.Source = p.source
	}
	if p.minLoan != nil {
		s.MinLoan = *p.minLoan
	}
	s.Bounds = p.bounds
	return s
}

// With are the settings of a namespace with a HarvestPolicy, or what holds where that cannot be read, and why it cannot.
func (s Settings) With(spec v1alpha1.HarvestPolicySpec) (Settings, error) {
	p, err := read(spec)
	if err != nil {
		p = *nothing
	}
	return s.under(&p), err
}

// nothing is the policy of a namespace whose own cannot be read: whoever wrote it meant some bound.
var nothing = &policy{maxMode: api.ModeObserve}

// read checks what the API server has checked already, where it knows the rules of this version.
func read(spec v1alpha1.HarvestPolicySpec) (p policy, err error) {
	if spec.Mode != "" {
		if p.mode, err = api.ParseMode(string(spec.Mode)); err != nil {
			return p, fmt.Errorf("spec.mode: %w", err)
		}
	}
	if spec.MaxMode != "" {
		if p.maxMode, err = api.ParseMode(string(spec.MaxMode)); err != nil {
			return p, fmt.Errorf("spec.maxMode: %w", err)
		}
	}
	if spec.Source != "" {
		if p.source, err = api.ParseSource(string(spec.Source)); err != nil {
			return p, fmt.Errorf("spec.source: %w", err)
		}
	}
	if d := spec.MinLoan; d != nil {
		if d.Duration < 0 || d.Duration > mostMinLoan {
			return p, fmt.Errorf("spec.minLoan is %v, want a duration from 0s to %v, such as 100ms", d.Duration, mostMinLoan)
		}
		p.minLoan = &d.Duration
	}
	for _, bound := range []struct {
		field string
		value *resource.Quantity
		to    *int64
		milli bool
	}{
		{"maxCPU", spec.MaxCPU, &p.bounds.MaxCPUMilli, true},
		{"minCPU", spec.MinCPU, &p.bounds.Keep.CPUMilli, true},
		{"minMemory", spec.MinMemory, &p.bounds.Keep.MemoryBytes, false},
	} {
		most := int64(mostReserve)
		if !bound.milli {
			most = mostMemory
		}
		switch q := bound.value; {
		case q == nil:
		case q.Sign() < 0 || q.CmpInt64(most) > 0:
			return p, fmt.Errorf("spec.%s is %s, want an amount from 0 to %d", bound.field, q, most)
		case bound.milli:
			*bound.to = q.MilliValue()
		default:
			*bound.to = q.Value()
		}
	}
	if q := spec.MaxCPU; q != nil && q.IsZero() {
		p.bounds.MaxCPUMilli = 1 // less than any limit, which is the limit; 0 would be no bound
	}
	return p, nil
}

// mostMemory is more than any node has, in bytes.
const mostMemory = 1 << 50

func (l *Live) setPolicy(obj any) {
	object, ok := obj.(*unstructured.Unstructured)
	if !ok || object.GetName() != v1alpha1.HarvestPolicyName {
		return
	}
	var typed v1alpha1.HarvestPolicy
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &typed)
	var p policy
	if err == nil {
		p, err = read(typed.Spec)
	}
	if err != nil {
		l.refused(fmt.Errorf("HarvestPolicy %s/%s cannot be read, so that the namespace's functions are only observed: %w", object.GetNamespace(), object.GetName(), err))
		p = *nothing
	}
	l.policies.byNamespace.Store(object.GetNamespace(), &p)
	l.changed()
}

func (l *Live) removePolicy(obj any) {
	if object, ok := obj.(metav1.Object); ok && object.GetName() == v1alpha1.HarvestPolicyName {
		l.policies.byNamespace.Delete(object.GetNamespace())
		l.changed()
	}
}
