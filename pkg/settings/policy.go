package settings

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

var harvestPolicies = v1alpha1.GroupVersion.WithResource("harvestpolicies")

// policy is what a HarvestPolicy sets. Two can be compared.
type policy struct {
	mode, maxMode api.Mode   // "" is not set
	source        api.Source // likewise
	minLoan       field[time.Duration]
	maxCPUMilli   field[int64]
	minCPUMilli   field[int64]
	minMemory     field[int64]
	safeguard     field[int64] // percent
	protect       api.Protect  // "" is not set
	domain        string       // "" is not set
	cpuReserve    field[int64] // milli CPU; only the cluster's default has it
}

// field is a value that need not be set.
type field[T any] struct {
	value T
	set   bool
}

func (f field[T]) over(was T) T {
	if f.set {
		return f.value
	}
	return was
}

// policies has the HarvestPolicies of namespaces, and the cluster's default. It is empty if the cluster has no such kind.
type policies struct {
	byNamespace sync.Map
	byDefault   atomic.Pointer[policy]
	lastRead    *policy     // the cluster's default as it could be read last; nil if it could not
	partly      atomic.Bool // something in the cluster's default is not accepted
	absent      atomic.Bool
}

func (p *policies) of(namespace string) *policy {
	if namespace == Namespace { // the cluster's default has been applied already
		return nil
	}
	if found, ok := p.byNamespace.Load(namespace); ok {
		return found.(*policy)
	}
	return nil
}

// under returns the settings with a policy applied.
func (s Settings) under(p *policy) Settings {
	if p == nil {
		return s
	}
	if p.mode != "" {
		s.Mode = p.mode
	}
	if p.maxMode != "" {
		s.MaxMode = s.MaxMode.AtMost(p.maxMode)
	}
	if p.source != "" {
		s.Source = p.source
	}
	s.MinLoan = p.minLoan.over(s.MinLoan)
	s.SafeguardPercent = p.safeguard.over(s.SafeguardPercent)
	s.Protect = cmp.Or(p.protect, s.Protect)
	s.Domain = cmp.Or(p.domain, s.Domain)
	s.CPUReserveMilli = p.cpuReserve.over(s.CPUReserveMilli)
	s.Bounds.MaxCPUMilli = p.maxCPUMilli.over(s.Bounds.MaxCPUMilli)
	s.Bounds.Keep.CPUMilli = p.minCPUMilli.over(s.Bounds.Keep.CPUMilli)
	s.Bounds.Keep.MemoryBytes = p.minMemory.over(s.Bounds.Keep.MemoryBytes)
	return s
}

// WithDefault returns the settings of a ConfigMap with the cluster's HarvestPolicy, as a part of Libra has them that
// starts. If the policy cannot be read, everything is only observed, and the error says why.
func (s Settings) WithDefault(spec v1alpha1.HarvestPolicySpec) (Settings, error) {
	p, err := read(spec)
	if err != nil {
		p = *nothing
	}
	return s.under(&p), err
}

// With returns the cluster's settings with a namespace's HarvestPolicy. If that cannot be read, everything is only
// observed, and the error says why. A field that only the cluster's default may have is ignored, and the error says that,
// too.
func (s Settings) With(spec v1alpha1.HarvestPolicySpec) (Settings, error) {
	p, err := read(spec)
	if err != nil {
		p = *nothing
	}
	p, only := p.ofNamespace()
	return s.under(&p), errors.Join(err, only)
}

// ofNamespace returns the policy without what only the cluster's default may set, and an error that says what that was.
func (p policy) ofNamespace() (policy, error) {
	if !p.cpuReserve.set {
		return p, nil
	}
	p.cpuReserve = field[int64]{}
	return p, fmt.Errorf("spec.cpuReserve is ignored: it applies to nodes, so only HarvestPolicy %s/%s may set it", Namespace, v1alpha1.HarvestPolicyName)
}

// nothing is the policy of a namespace whose own cannot be read: whoever wrote that meant some bound.
var nothing = &policy{maxMode: api.ModeObserve}

// read checks what an API server that knows the rules of this version has checked already.
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
	if spec.Protect != "" {
		if p.protect, err = api.ParseProtect(string(spec.Protect)); err != nil {
			return p, fmt.Errorf("spec.protect: %w", err)
		}
	}
	if d := spec.MinLoan; d != nil {
		if d.Duration < 0 || d.Duration > mostMinLoan {
			return p, fmt.Errorf("spec.minLoan is %v, want a duration from 0s to %v, such as 100ms", d.Duration, mostMinLoan)
		}
		p.minLoan = field[time.Duration]{d.Duration, true}
	}
	if percent := spec.SafeguardPercent; percent != nil {
		if *percent < leastSafeguard || *percent > mostSafeguard {
			return p, fmt.Errorf("spec.safeguardPercent is %d, want a number from %d to %d", *percent, leastSafeguard, mostSafeguard)
		}
		p.safeguard = field[int64]{int64(*percent), true}
	}
	if p.domain = spec.Domain; p.domain != "" {
		if problems := validation.IsDNS1123Label(p.domain); len(problems) > 0 {
			return p, fmt.Errorf("spec.domain is %.64q: %s", p.domain, strings.Join(problems, "; "))
		}
	}
	for _, amount := range []struct {
		name  string
		value *resource.Quantity
		to    *field[int64]
		milli bool
	}{
		{"maxCPU", spec.MaxCPU, &p.maxCPUMilli, true},
		{"minCPU", spec.MinCPU, &p.minCPUMilli, true},
		{"minMemory", spec.MinMemory, &p.minMemory, false},
		{"cpuReserve", spec.CPUReserve, &p.cpuReserve, true},
	} {
		most := int64(api.MostCPU)
		if !amount.milli {
			most = api.MostMemory
		}
		switch q := amount.value; {
		case q == nil:
		case q.Sign() < 0 || q.CmpInt64(most) > 0:
			return p, fmt.Errorf("spec.%s is %s, want an amount from 0 to %d", amount.name, q, most)
		case amount.milli:
			*amount.to = field[int64]{q.MilliValue(), true}
		default:
			*amount.to = field[int64]{q.Value(), true}
		}
	}
	if q := spec.MaxCPU; q != nil && q.IsZero() {
		p.maxCPUMilli.value = 1 // less than any limit, so the limit holds; 0 would be no bound
	}
	return p, nil
}

// Below leastSafeguard, the safeguard takes back what most donors do not need. Above mostSafeguard, there is hardly time
// between it and want.
const leastSafeguard, mostSafeguard = 50, 95

// written returns a HarvestPolicy and what it sets.
func written(object *unstructured.Unstructured) (typed v1alpha1.HarvestPolicy, p policy, err error) {
	if err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &typed); err == nil {
		p, err = read(typed.Spec)
	}
	return typed, p, err
}

// PolicyOf returns a HarvestPolicy. refused says what Libra's parts do not accept of it, and what holds instead.
func PolicyOf(object *unstructured.Unstructured) (typed v1alpha1.HarvestPolicy, refused error) {
	typed, p, err := written(object)
	switch {
	case err != nil && object.GetNamespace() == Namespace:
		return typed, fmt.Errorf("each part of Libra keeps the last version that it could read, but for a lower spec.maxMode; it only observes if it has read none or spec.maxMode is wrong: %w", err)
	case err != nil:
		return typed, fmt.Errorf("the namespace's functions are only observed: %w", err)
	case object.GetNamespace() != Namespace:
		_, err = p.ofNamespace()
	}
	return typed, err
}

// HarvestPolicies returns the policies that have been read. The caller must not change them.
func (l *Live) HarvestPolicies() []*unstructured.Unstructured {
	if l.written == nil || !l.Synced() {
		return nil
	}
	var all []*unstructured.Unstructured
	for _, obj := range l.written.List() {
		if object, ok := obj.(*unstructured.Unstructured); ok && object.GetName() == v1alpha1.HarvestPolicyName {
			all = append(all, object)
		}
	}
	return all
}

func (l *Live) setPolicy(obj any) {
	object, ok := obj.(*unstructured.Unstructured)
	if !ok || object.GetName() != v1alpha1.HarvestPolicyName {
		return
	}
	typed, p, err := written(object)
	if object.GetNamespace() == Namespace {
		l.setDefault(p, typed.Spec, err)
		return
	}
	if err != nil {
		p = *nothing
	}
	p, _ = p.ofNamespace()
	if _, err := PolicyOf(object); err != nil {
		l.refused(fmt.Errorf("HarvestPolicy %s/%s: %w", object.GetNamespace(), object.GetName(), err))
	}
	// A write of only its status is an update, too, but nobody needs to react to it.
	if was := l.policies.of(object.GetNamespace()); was != nil && *was == p {
		return
	}
	l.policies.byNamespace.Store(object.GetNamespace(), &p)
	l.changedInNamespace()
}

// setDefault stores the cluster's default. If it cannot be read, the last one that could be holds, with the lower maxMode
// of the two; if there was none, everything is only observed.
func (l *Live) setDefault(p policy, spec v1alpha1.HarvestPolicySpec, err error) {
	l.policies.partly.Store(err != nil)
	if err == nil {
		l.policies.lastRead = &p
	} else {
		until := "the last version that could be read holds until it is corrected"
		if p = *nothing; l.policies.lastRead != nil {
			p = *l.policies.lastRead
		} else {
			until = "all functions are only observed until it is corrected"
		}
		// An attempt to turn something off counts, even if it or another field is mistyped.
		was := cmp.Or(p.maxMode, api.ModeFull)
		switch most, bad := api.ParseMode(string(spec.MaxMode)); {
		case spec.MaxMode == "":
		case bad != nil:
			p.maxMode, until = api.ModeObserve, "all functions are only observed until it is corrected"
		case was.AtMost(most) != was:
			p.maxMode, until = most, "the last version that could be read holds, with this maxMode, until it is corrected"
		}
		l.refused(fmt.Errorf("HarvestPolicy %s/%s, the cluster's default, cannot be read; %s: %w", Namespace, v1alpha1.HarvestPolicyName, until, err))
	}
	if was := l.policies.byDefault.Load(); was != nil && *was == p {
		return
	}
	l.policies.byDefault.Store(&p)
	l.changed()
}

func (l *Live) removePolicy(obj any) {
	object, ok := obj.(metav1.Object)
	if !ok || object.GetName() != v1alpha1.HarvestPolicyName {
		return
	}
	if object.GetNamespace() == Namespace {
		l.policies.byDefault.Store(nil)
		l.policies.lastRead = nil
		l.policies.partly.Store(false)
		l.changed()
	} else {
		l.policies.byNamespace.Delete(object.GetNamespace())
		l.changedInNamespace()
	}
}
