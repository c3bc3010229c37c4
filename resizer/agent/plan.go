package agent

import (
	"slices"

	"libra.dev/libra/pkg/api"
)

// view is what planning knows of one container that the agent may change.
type view struct {
	pod string // namespace/name
	// owed is the user allocation. A resource of which it is zero is never touched.
	owed api.Resources
	// due is what the limits are to be: owed + borrowed - lent, or owed while
	// something holds it whole.
	due api.Resources
	// inForce is as it was read last; zero where there is no limit.
	inForce api.Resources
	// keep is the least bytes that the memory limit may be lowered to now.
	keep int64
}

// direction of a write, in the order of their urgency.
type direction int

const (
	restore direction = iota // towards the user allocation, from below
	lower
	raise // above the user allocation
)

func (d direction) String() string { return [...]string{"restore", "lower", "raise"}[d] }

// resource is one of the two that are lent, each by itself.
type resource int

const (
	cpu resource = iota
	memory
)

var resources = [...]resource{cpu, memory}

func (r resource) String() string { return [...]string{"cpu", "memory"}[r] }

// of points at the resource's volume: milli CPU, or bytes.
func (r resource) of(v *api.Resources) *int64 {
	if r == cpu {
		return &v.CPUMilli
	}
	return &v.MemoryBytes
}

// write is one limit to set now.
type write struct {
	pod       string
	resource  resource
	direction direction
	to        int64 // milli CPU, or bytes
}

// noLimit stands for a limit that is not there: more than any, and small enough to
// be added up.
const noLimit = int64(1) << 52

// plan returns what may be written now, in the order to write it: restores, which
// never wait; decreases; increases above the user allocation as far as what was read
// pays for them. What a borrower cannot take stays with its donors. A borrower that
// nobody pays for any more is shrunk, unless forgive says that the news of which
// loans have ended is on its way.
func plan(views []view, forgive bool) []write {
	var writes []write
	for _, r := range resources {
		writes = append(writes, planOne(r, views, forgive)...)
	}
	slices.SortStableFunc(writes, func(a, b write) int { return int(a.direction - b.direction) })
	return writes
}

// demand is one resource of one container.
type demand struct{ owed, due, inForce int64 }

// unpaid is the most that the container may hold without being given anything above
// its user allocation.
func (d demand) unpaid() int64 { return max(d.inForce, min(d.due, d.owed)) }

func planOne(r resource, views []view, forgive bool) []write {
	demands := make([]demand, len(views))
	for i, v := range views {
		d := demand{*r.of(&v.owed), *r.of(&v.due), *r.of(&v.inForce)}
		switch {
		case d.owed == 0:
			d = demand{}
		case d.inForce == 0:
			d.inForce = noLimit
		}
		if r == memory && d.due < d.owed {
			// What cannot be lowered pays for nothing.
			d.due = max(d.due, min(d.inForce, v.keep, d.owed))
		}
		demands[i] = d
	}
	balance(demands, forgive)
	var room int64
	for i, v := range views {
		d := &demands[i]
		if r == memory && d.owed != 0 && d.due < min(d.inForce, v.keep) {
			d.due = min(d.inForce, v.keep)
			if d.inForce-d.due < leastStep {
				d.due = d.inForce
			}
		}
		room += d.owed - d.unpaid()
	}

	var writes []write
	for i, d := range demands {
		w := write{pod: views[i].pod, resource: r}
		switch whole := min(d.due, d.owed); {
		case d.inForce < whole:
			w.direction, w.to = restore, whole
		case d.inForce > d.due:
			w.direction, w.to = lower, d.due
		case d.inForce < d.due && room > 0:
			granted := min(d.due-d.inForce, room)
			room -= granted
			w.direction, w.to = raise, d.inForce+granted
		default:
			continue
		}
		writes = append(writes, w)
	}
	return writes
}

// balance makes what is given and what is taken the same: donors keep what nobody
// takes, and borrowers lose what nobody gives.
func balance(demands []demand, forgive bool) {
	var unclaimed int64
	for _, d := range demands {
		unclaimed += d.owed - d.due
	}
	for i := range demands {
		d := &demands[i]
		if kept := min(unclaimed, d.owed-d.due); kept > 0 {
			d.due += kept
			unclaimed -= kept
		}
		if lost := min(-unclaimed, d.due-d.owed); lost > 0 && !forgive {
			d.due -= lost
			unclaimed += lost
		}
	}
}

const (
	// marginBytes and a tenth is what a memory limit leaves above what is in use.
	marginBytes = 32 << 20
	marginPart  = 10
	// leastStep is the least by which a limit follows memory that is being given back.
	leastStep = 4 << 20
	// reclaimStep is the most of what is charged that a round takes from a container: the
	// kernel reclaims before a write returns, and nobody gets back what they are owed
	// meanwhile.
	reclaimStep = 16 << 20
)

// pinned is the least that the memory limit of a borrower may be lowered to that
// uses so many bytes: what it uses stays with it.
func pinned(used int64) int64 { return used + max(marginBytes, used/marginPart) }

// roomy is the least that the memory limit of a donor may be lowered to, so that so
// many bytes in use do not trip the safeguard; no limit is, of no container, when that
// would take more than the pool knows of.
func roomy(used int64, threshold float64) int64 {
	if float64(used) >= threshold*float64(mostBytes) {
		return max(pinned(used), mostBytes)
	}
	return max(pinned(used), int64(float64(used)/threshold)+1<<20)
}
