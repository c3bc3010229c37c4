// Package report is what Libra's parts count for FunctionReports: each adds up what it sees of every
// function in memory, and sends that to Redis every few seconds, where the resizer reads it. All of it
// can be lost without harm.
package report

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A Field is one of the Sums. Its number is how it travels: fields are only ever added, at the end.
type Field int

const (
	// Requests that began.
	Requests Field = iota
	// What requests were predicted not to use of their user allocation, and to use beyond it: the volume
	// times how long they ran, added when they end.
	CouldLendCPU
	CouldLendMemory
	WouldBorrowCPU
	WouldBorrowMemory
	// What was given away and received: the volume times how long.
	LentCPU
	BorrowedCPU
	BorrowedMemory
	// Safeguards that fired.
	Safeguards
	// How often a part found that the predictor knew nothing of the function, or had no prediction yet,
	// or had one.
	FoundUnseen
	FoundLearning
	FoundLearned
	// Requests that did not take part, by why. Reasons has their names.
	ClusterIP
	PodUnknown
	TooManyInFlight
	NotInPath
	Concurrency
	QueueProxyLimits
	NoLimits
	NoPrediction
	ConnectionUpgraded
	ColdStart
	FirstInContainer
	Mode
	// Compared are requests that were compared with those of a similar size from when their function was only observed,
	// and LogTime and LogTimeBefore how long they and those took: binary logarithms of nanoseconds, times LogUnit.
	Compared
	LogTime
	LogTimeBefore

	Fields int = iota
)

const (
	// LogUnit keeps logarithms to a thousandth, which is a fifteenth of a percent of a time.
	LogUnit = 1000
	// LeastCompared is how many requests tell something of how long the function's take.
	LeastCompared = 20
)

// Reasons are the names of the fields that count requests by why they did not take part, as the metric
// libra_invocations_total has them.
var Reasons = map[Field]string{
	ClusterIP:          "cluster_ip",
	PodUnknown:         "pod_unknown",
	TooManyInFlight:    "too_many_in_flight",
	NotInPath:          "not_in_path",
	Concurrency:        "concurrency",
	QueueProxyLimits:   "queue_proxy_limits",
	NoLimits:           "no_limits",
	NoPrediction:       "no_prediction",
	ConnectionUpgraded: "connection_upgraded",
	ColdStart:          "cold_start",
	FirstInContainer:   "first_in_container",
	Mode:               "mode",
}

// Sums are what was counted of one function. Those of volumes are in CPUTime and MemoryTime.
type Sums [Fields]int64

// SlowdownPercent is the typical time of the requests that were compared over that of those before, in percent; nil when
// too few were compared.
func (s *Sums) SlowdownPercent() *int32 {
	n := s[Compared]
	if n < LeastCompared {
		return nil
	}
	log := float64(s[LogTime]-s[LogTimeBefore]) / LogUnit / float64(n)
	percent := int32(min(math.Round(100*math.Exp2(log)), math.MaxInt32))
	return &percent
}

// Add adds what another counted, or the same part at another time.
func (s *Sums) Add(o *Sums) {
	for i, n := range o {
		s[i] += n
	}
}

// CPUTime is CPU for as long as it lasted, in thousandths of a core times microseconds.
func CPUTime(milli int64, d time.Duration) int64 { return milli * d.Microseconds() }

// MemoryTime is memory for as long as it lasted, in MiB times microseconds: of a byte, a minute of a
// thousand requests would not fit into 64 bits.
func MemoryTime(bytes int64, d time.Duration) int64 { return bytes >> 20 * d.Microseconds() }

// MeanCPUMilli is the mean, in thousandths of a core, of a sum of CPUTime over a window.
func MeanCPUMilli(sum int64, window time.Duration) int64 { return mean(sum, window) }

// MeanMemoryBytes is the mean of a sum of MemoryTime over a window.
func MeanMemoryBytes(sum int64, window time.Duration) int64 { return mean(sum, window) << 20 }

// mean rounds to the nearest.
func mean(sum int64, window time.Duration) int64 {
	if window < time.Microsecond {
		return 0
	}
	return (sum + window.Microseconds()/2) / window.Microseconds()
}

// Record is what one part counted in one slot, by function.
type Record map[types.NamespacedName]*Sums

// Add adds to the Sums of a function.
func (r Record) Add(function types.NamespacedName, s *Sums) {
	sums := r[function]
	if sums == nil {
		sums = new(Sums)
		r[function] = sums
	}
	sums.Add(s)
}
