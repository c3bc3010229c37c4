package invocation

import (
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// terms are how far Libra goes with a revision.
type terms struct {
	mode api.Mode
	keep api.Resources // what a donor keeps at least
	// A donor keeps enough CPU that its predicted peak is at most this percentage of it: a correct prediction never
	// trips the safeguard.
	safeguardPercent int64
	minLoan          time.Duration // no shorter loan of CPU is made
	// keepsIdle says that pods lend nothing between invocations.
	keepsIdle bool
}

// keepAll is the bound of a donor that lends nothing.
const keepAll int64 = math.MaxInt64

// annotationError says why an annotation was refused.
type annotationError struct {
	annotation string
	err        error
}

func (e *annotationError) Error() string { return e.err.Error() }

// consequence says what the refusal means for the revision.
func (e *annotationError) consequence() string {
	switch e.annotation {
	case api.ModeAnnotation:
		return "Refused the mode; the function is only observed"
	case api.IdleAnnotation:
		return "Refused the value for idle pods; they lend nothing"
	}
	return "Refused a bound; the function lends nothing of that resource"
}

// termsOf reads annotations, which take precedence over the settings of the revision's namespace. A value that is
// refused counts as one that can harm nobody: for a mode, no loans, which ModeOf sees to; for a bound, nothing of
// the resource is lent.
func termsOf(annotations map[string]string, of settings.Settings) (s terms, refused []*annotationError) {
	s = terms{mode: of.ModeOf(annotations), keep: of.Bounds.Keep, safeguardPercent: of.SafeguardPercent, minLoan: of.MinLoan}
	refuse := func(annotation string, err error) {
		if err != nil {
			refused = append(refused, &annotationError{annotation, err})
		}
	}
	if value, ok := annotations[api.ModeAnnotation]; ok {
		if _, err := api.ParseMode(value); err != nil {
			refuse(api.ModeAnnotation, fmt.Errorf("annotation %s is %.64q, want %s, %s or %s",
				api.ModeAnnotation, value, api.ModeObserve, api.ModeLend, api.ModeFull))
		}
	}
	if value, ok := annotations[api.IdleAnnotation]; ok {
		s.keepsIdle = true
		refuse(api.IdleAnnotation, api.ParseIdle(value))
	}
	if value, ok := annotations[api.MinCPUAnnotation]; ok {
		q, err := api.ParseMinCPU(value)
		refuse(api.MinCPUAnnotation, err)
		if s.keep.CPUMilli = keepAll; err == nil && isSane(q) {
			s.keep.CPUMilli = q.MilliValue()
		}
	}
	if value, ok := annotations[api.MinMemoryAnnotation]; ok {
		q, err := api.ParseMinMemory(value)
		refuse(api.MinMemoryAnnotation, err)
		if s.keep.MemoryBytes = keepAll; err == nil && isSane(q) {
			s.keep.MemoryBytes = q.Value()
		}
	}
	return s, refused
}

// isSane reports whether q is small enough to have a milli value.
func isSane(q resource.Quantity) bool { return q.CmpInt64(maxSize) <= 0 }

// lendsIdle reports whether pods lend between invocations.
func (s terms) lendsIdle() bool { return s.mode != api.ModeObserve && !s.keepsIdle }

// allow returns the part of v that the mode lets the pool know of.
func (s terms) allow(v volumes) volumes {
	switch s.mode {
	case api.ModeFull:
		return v
	case api.ModeLend:
		return volumes{surplus: v.surplus}
	default:
		return volumes{}
	}
}
