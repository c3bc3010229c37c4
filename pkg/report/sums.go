// Package report has what Libra's parts count for FunctionReports. Each part adds up in memory what it sees of every
// function, and every few seconds sends that to Redis, where the resizer reads it. All of it can be lost without harm.
package report

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A Field is one of the Sums. Its number identifies it on the wire: fields are only ever added, at the end.
type Field int

const (
	// Requests that began.
	Requests Field = iota
	// The part of their user allocation that requests were predicted not to use, and their predicted use beyond it: the
	// volume times how long they ran, added when they end.
	CouldLendCPU
	CouldLendMemory
	WouldBorrowCPU
	WouldBorrowMemory
	// Volumes lent and borrowed, times how long.
	LentCPU
	BorrowedCPU
	BorrowedMemory
	// Safeguards that fired.
	Safeguards
	// How often a part found that the predictor knew nothing about the function, or had no prediction yet, or had one.
	FoundUnseen
	FoundLearning
	FoundLearned
	// Requests that did not take part, by the reason. Reasons has the names.
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
	// Compared counts requests that were compared with requests of a similar size from when their function was only
	// observed. LogTime and LogTimeBefore sum how long the former and the latter took: binary logarithms of nanoseconds,
	// times LogUnit.
	Compared
	LogTime
	LogTimeBefore

	Fields int = iota
)

const (
	// LogUnit keeps a thousandth of a logarithm, which is a fifteenth of a percent of a time.
	LogUnit = 1000
	// LeastCompared is the least number of compared requests that says how the function's times have changed.
	LeastCompared = 20
)

// Reasons names the fields that count requests by why they did not take part, as in the metric libra_invocations_total.
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

// Sums are what was counted of one function. Volumes are in the units of CPUTime and MemoryTime.
type Sums [Fields]int64

// SlowdownPercent returns the typical time of the compared requests as a percentage of that of those before, or nil if
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

// Add adds the Sums of another part, or of the same part at another time.
func (s *Sums) Add(o *Sums) {
	for i, n := range o {
		s[i] += n
	}
}

// CPUTime returns CPU times how long it lasted, in thousandths of a core times microseconds.
func CPUTime(milli int64, d time.Duration) int64 { return milli * d.Microseconds() }

// MemoryTime returns memory times how long it lasted, in MiB times microseconds. In bytes, a minute of a thousand
// requests would not fit into 64 bits.
func MemoryTime(bytes int64, d time.Duration) int64 { return bytes >> 20 * d.Microseconds() }

// MeanCPUMilli returns the mean, in thousandths of a core, of a sum of CPUTime over a window.
func MeanCPUMilli(sum int64, window time.Duration) int64 { return mean(sum, window) }

// MeanMemoryBytes returns the mean, in bytes, of a sum of MemoryTime over a window.
func MeanMemoryBytes(sum int64, window time.Duration) int64 { return mean(sum, window) << 20 }

// mean rounds to the nearest integer.
func mean(sum int64, window time.Duration) int64 {
	if window < time.Microsecond {
		return 0
	}
	return (sum + window.Microseconds()/2) / window.Microseconds()
}

// Record is what one part has counted in one slot, by function.
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
