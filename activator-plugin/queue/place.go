package queue

import "time"

const (
	// A second of waiting is worth ageing of predicted time.
	ageing = 50 * time.Millisecond
	// patience is the part of its time-out for which a request may be passed by others.
	patience = 4
)

// place is that of a request in its line. All that wait age alike, so that who goes
// before whom is settled when they come.
type place struct {
	key    time.Duration
	number uint64 // in the order in which they came
}

func (p place) before(q place) bool {
	return p.key < q.key || p.key == q.key && p.number < q.number
}

// keyOf is the predicted time less what waiting is worth, but for what is the same for
// all. A request that comes later goes before one that is predicted to take d only if it
// comes within d·(1 s / ageing) of it. That time is at most the patience of its time-out.
func keyOf(predicted, arrived, timeout time.Duration) time.Duration {
	if timeout > 0 {
		predicted = min(predicted, aged(timeout/patience))
	}
	return predicted + aged(arrived)
}

func aged(waited time.Duration) time.Duration {
	return waited / (time.Second / ageing)
}
