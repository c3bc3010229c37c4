package predict

import (
	"sort"
	"time"

	"libra.dev/libra/pkg/api"
)

// Prediction is what an invocation will use at its peak, for how long, and how much CPU
// time in all. A zero resource, or a zero duration, was not predicted. The CPU time is the
// median: to be put in order by, not to be relied on.
type Prediction struct {
	Demand   api.Resources
	Duration time.Duration
	CPUTime  time.Duration
	// Beyond says that the input is larger than all that were learned from. It is predicted
	// as the largest of them, which it may borrow; that it needs no more is not known.
	Beyond bool
}

// Table is all that the predictor knows of one function: with the input size as
// the only feature, its tree ensembles are step functions of that size. It does not
// change.
type Table struct {
	Version   int64 // grows with every change of the answers
	Estimator string
	Stage     string // in the life of the function
	Reason    string // why it is in that stage, for people

	cpuMilli, memoryBytes, durationMillis, cpuTimeMicros steps

	unknown Prediction // of an input of unknown size
	// offset is added to what the steps say, as the function's recent errors ask for,
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

// Lookup predicts for an input of size bytes, or of api.UnknownSize.
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

// raised never lowers an answer, and makes no prediction where there is none.
func raised(raw, offset, largest int64) int64 {
	if raw == 0 {
		return 0
	}
	return max(raw, min(raw+offset, largest))
}

// predictsNothing says that no input's demand is predicted, as of a function whose
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
