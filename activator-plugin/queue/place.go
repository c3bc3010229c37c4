package queue

import "time"

const (
	// ageing is the predicted time that a second of waiting is worth. Beyond a full node's load, waits
	// are long, and with more ageing a queue is nearly one in the order of arrival: on the recorded
	// requests of TestWeightsOnRecordedRequests the mean slow-down at a load of 120 % is 0.59 of that
	// by the kubelet's weights, and it would be 0.66 with 50 ms, and 0.59 without ageing.
	ageing = 20 * time.Millisecond
	// Others may pass a request for at most 1/patience of its timeout.
	patience = 4
)

// place is a request's place in its line. All waiting requests age alike, so their order
// is settled when they come.
type place struct {
	key    time.Duration
	number uint64 // in the order in which they came
}

func (p place) before(q place) bool {
	return p.key < q.key || p.key == q.key && p.number < q.number
}

// keyOf returns the predicted time minus what waiting is worth, without the part that is
// the same for all. A later request goes before one that is predicted to take d only if
// it comes within d·(1 s / ageing) of it. That time is at most 1/patience of the timeout.
func keyOf(predicted, arrived, timeout time.Duration) time.Duration {
	if timeout > 0 {
		predicted = min(predicted, aged(timeout/patience))
	}
	return predicted + aged(arrived)
}

func aged(waited time.Duration) time.Duration {
	return waited / (time.Second / ageing)
}
