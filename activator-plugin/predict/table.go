package predict

import (
	"sort"
	"time"

	"libra.dev/libra/pkg/api"
)

// Prediction is what an invocation will use at its peak, for how long, and how much CPU
// time in all. A zero resource or duration was not predicted. CPUTime is a median:
// requests are ordered by it, but nothing may rely on it.
type Prediction struct {
	Demand   api.Resources
	Duration time.Duration
	CPUTime  time.Duration
	// Beyond says that the input is larger than every input learned from. The prediction is
	// then that for the largest of them: the invocation may borrow so much, but whether it
	// needs more is not known.
	Beyond bool
}

// Table is all that the predictor knows about one function. Because the input size is the
// only feature, its tree ensembles are step functions of that size. A Table is immutable.
type Table struct {
	Version   int64 // grows with every change of the answers
	Estimator string
	Stage     string // in the life of the function
	Reason    string // why it is in that stage, for people

	cpuMilli, memoryBytes, durationMillis, cpuTimeMicros steps

	unknown Prediction // of an input of unknown size
	// offset is added to the values of the steps, as the function's recent errors require,
	// but raises nothing beyond largest.
	offset, largest api.Resources
	largestSize     int64 // bytes of the largest input learned from; api.UnknownSize when no size was known
}

// steps has one value more than thresholds: values[i] holds for the sizes that
// have reached i of the thresholds.
type steps struct {
	thresholds []int64 // bytes, ascending
	values     []int64
}

func (s steps) at(size int64) int64 {
	return s.values[sort.Search(len(s.thresholds), func(i int) bool { return s.thresholds[i] > size })]
}

// Lookup returns the prediction for an input of size bytes, or of api.UnknownSize.
func (t *Table) Lookup(size int64) Prediction {
	p := t.unknown
	if size >= 0 {
		p = Prediction{
			Demand: api.Resources{
				CPUMilli:    t.cpuMilli.at(size),
				MemoryBytes: t.memoryBytes.at(size),
			},
			Duration: time.Duration(t.durationMillis.at(size)) * time.Millisecond,
			CPUTime:  time.Duration(t.cpuTimeMicros.at(size)) * time.Microsecond,
			Beyond:   size > t.largestSize,
		}
	}
	p.Demand.CPUMilli = raised(p.Demand.CPUMilli, t.offset.CPUMilli, t.largest.CPUMilli)
	p.Demand.MemoryBytes = raised(p.Demand.MemoryBytes, t.offset.MemoryBytes, t.largest.MemoryBytes)
	return p
}

// raised adds offset to raw, up to largest. It never lowers raw, and adds nothing to 0,
// which is no prediction.
func raised(raw, offset, largest int64) int64 {
	if raw == 0 {
		return 0
	}
	return max(raw, min(raw+offset, largest))
}

// predictsNothing reports whether no input's demand is predicted, as for a function whose
// profiling has just begun.
func (t *Table) predictsNothing() bool {
	for _, values := range [][]int64{t.cpuMilli.values, t.memoryBytes.values} {
		for _, v := range values {
			if v != 0 {
				return false
			}
		}
	}
	return t.unknown.Demand.IsZero()
}
