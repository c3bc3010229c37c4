package agent

import "slices"

// view is what planning knows of one container that the agent may change, in milli CPU.
type view struct {
	pod     string // namespace/name
	owed    int64  // the user allocation; 0 means never touch it
	due     int64  // what the limit is to be: owed + borrowed - lent, or owed while something holds it whole
	inForce int64  // as it was last read; 0 means no limit
}

// direction is that of a write. Directions are in order of urgency.
type direction int

const (
	restore direction = iota // towards the user allocation, from below
	lower
	raise // above the user allocation
)

func (d direction) String() string { return [...]string{"restore", "lower", "raise"}[d] }

// write is one CPU limit to set now.
type write struct {
	pod       string
	direction direction
	to        int64 // milli CPU
}

// noLimit stands for a missing limit: it is more than any limit, and small enough to be added up.
const noLimit = int64(1) << 52

// plan returns the writes that may be made now, in order: restores, which never wait; decreases;
// and increases above the user allocation, as far as the limits that were read pay for them. Donors
// keep what a borrower cannot take. A borrower that nobody pays for any more is shrunk, unless
// forgive says that the news of which loans have ended is on its way.
func plan(views []view, forgive bool) []write {
	views = slices.Clone(views)
	for i := range views {
		switch v := &views[i]; {
		case v.owed == 0:
			*v = view{pod: v.pod}
		case v.inForce == 0:
			v.inForce = noLimit
		}
	}
	balance(views, forgive)
	var room int64
	for _, v := range views {
		room += v.owed - v.unpaid()
	}

	var writes []write
	for _, v := range views {
		w := write{pod: v.pod}
		switch whole := min(v.due, v.owed); {
		case v.inForce < whole:
			w.direction, w.to = restore, whole
		case v.inForce > v.due:
			w.direction, w.to = lower, v.due
		case v.inForce < v.due && room > 0:
			granted := min(v.due-v.inForce, room)
			room -= granted
			w.direction, w.to = raise, v.inForce+granted
		default:
			continue
		}
		writes = append(writes, w)
	}
	slices.SortStableFunc(writes, func(a, b write) int { return int(a.direction - b.direction) })
	return writes
}

// unpaid returns the most that the container may hold without being given anything above its user
// allocation.
func (v view) unpaid() int64 { return max(v.inForce, min(v.due, v.owed)) }

// balance makes what is given equal to what is taken: donors keep what nobody takes, and borrowers
// lose what nobody gives.
func balance(views []view, forgive bool) {
	var unclaimed int64
	for _, v := range views {
		unclaimed += v.owed - v.due
	}
	for i := range views {
		v := &views[i]
		if kept := min(unclaimed, v.owed-v.due); kept > 0 {
			v.due += kept
			unclaimed -= kept
		}
		if lost := min(-unclaimed, v.due-v.owed); lost > 0 && !forgive {
			v.due -= lost
			unclaimed += lost
		}
	}
}
