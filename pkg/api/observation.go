package api

import "time"

// RecordVersion is the version of the intents and observations on Redis streams, in
// their field "v". A reader counts and skips records of an unknown version.
const RecordVersion = 1

// UnknownSize is the input size of a request that does not state it.
const UnknownSize int64 = -1

// ObservationsStream is the stream that the node agents append to and that the
// predictor learns from.
const ObservationsStream = "libra:observations"

// Ended is what the activator knows about an invocation that has ended. It travels on
// the node's "ended" stream to the node agent.
type Ended struct {
	ID       string `json:"id"`
	Function string `json:"function"` // namespace/revision
	// Configuration is that of the revision, as namespace/name, so that a new revision
	// can start from what was learned about the last. It is empty when it is not known.
	Configuration string        `json:"configuration"`
	Pod           string        `json:"pod"`  // namespace/name
	Size          int64         `json:"size"` // bytes, or UnknownSize
	Duration      time.Duration `json:"duration_ns"`
	// Ago is how long the End waited to be sent; zero in an observation.
	Ago       time.Duration `json:"ago_ns,omitempty"`
	Predicted Resources     `json:"predicted"` // zero when there was no prediction
	// Lent and Borrowed are the most that was lent from, or borrowed by, the
	// invocation at any time.
	Lent     Resources `json:"lent"`
	Borrowed Resources `json:"borrowed"`
	// Alone says that no other invocation was in the pod at any time during this one, so
	// that all that the pod used is what this invocation used.
	Alone bool `json:"alone"`
	// Safeguarded says that it lent more than it could spare, and that
	// the safeguard gave that back.
	Safeguarded bool `json:"safeguarded"`
	Status      int  `json:"status"` // HTTP status of the response
}

// Observation is an Ended with what the node agent measured.
type Observation struct {
	Ended
	// Peak is the most CPU used in any 100 ms of the invocation (in all of it,
	// when it was shorter) and the most memory.
	Peak Resources `json:"peak"`
	// CPUTime is how much CPU time its container used while it ran.
	CPUTime time.Duration `json:"cpu_time_ns"`
	// Limit is the least effective limit that was in force while it ran.
	Limit Resources `json:"limit"`
	// LimitAtPeak is the effective limit that was in force at the peak. A loan that came
	// after the request began raises it, but not Limit.
	LimitAtPeak Resources `json:"limit_at_peak"`
	// ThrottledShare is the share of the invocation's time, 0 to 1, that its
	// container was throttled at its CPU quota.
	ThrottledShare float64 `json:"throttled_share"`
	// First says that no invocation was seen to end in this container before, so that
	// what it used may be what the container needs to start.
	First bool `json:"first"`
}
