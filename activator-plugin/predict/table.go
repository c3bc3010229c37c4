package predict

import (
	"sort"
	"time"

	"libra.dev/libra/pkg/api"
)

// Prediction is what an invocation will use at its peak, and for how long. A
// zero resource, or a zero duration, was not predicted.
type Prediction struct {
	Demand   api.Resources
	Duration time.Duration
}

// Table is all that the predictor knows of one function: with the input size as
// the only feature, its tree ensembles are step functions of that size.
type Table struct {
	Version   string
	Estimator string

	cpuMilli, memoryBytes, durationMillis steps
	unknown                               Prediction
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
	if size < 0 {
		return t.unknown
	}
	return Prediction{
		Demand: api.Resources{
			CPUMilli:    t.cpuMilli.at(size),
			MemoryBytes: t.memoryBytes.at(size),
		},
		Duration: time.Duration(t.durationMillis.at(size)) * time.Millisecond,
	}
}
