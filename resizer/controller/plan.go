package controller

import (
	"cmp"
	"slices"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// podLimits is what planning knows of a pod. A resource of which owed is zero has
// no limit of the user's: it is zero in every field and never touched.
type podLimits struct {
	name string // namespace/name
	owed api.Resources
	// least and most bound what may be asked for.
	least, most api.Resources
	// asked is the limit in the pod's spec.
	asked api.Resources
	// ceiling is the most that may be in force now: a change that was asked for
	// counts from then on when it raises, and only when it is seen in force when it
	// lowers.
	ceiling api.Resources
}

// direction of a resize; a lower one is issued first.
type direction int

const (
	restore direction = iota // back towards the user allocation, from below
	lower
	raise // above the user allocation
)

func (d direction) String() string {
	return [...]string{"restore", "lower", "raise"}[d]
}

// resize is one patch to issue now.
type resize struct {
	pod       string
	limits    api.Resources
	direction direction
}

// plan returns the resizes that may be issued now, in the order to issue them:
// restores, which never wait; decreases; increases above the user allocation that
// are paid for by room that exists already. What a borrower cannot take stays with
// its donors. waiting says that an increase was held back until a decrease is in force.
func plan(pods []podLimits, balances map[string]pool.Balance) (resizes []resize, waiting bool) {
	pods = slices.SortedFunc(slices.Values(pods), func(a, b podLimits) int { return cmp.Compare(a.name, b.name) })

	cpu := make([]demand, len(pods))
	memory := make([]demand, len(pods))
	var unclaimed api.Resources // of what donors would give, beyond what balances say
	for _, b := range balances {
		unclaimed = unclaimed.Add(b.Borrowed).Sub(b.Lent)
	}
	for i, p := range pods {
		b := balances[p.name]
		due := p.owed.Add(b.Borrowed).Sub(b.Lent)
		target := due.Max(p.least).Min(p.most)
		given := p.owed.Sub(target.Min(p.owed))
		taken := target.Min(due).Max(p.owed).Sub(p.owed)
		unclaimed = unclaimed.Add(given).Sub(taken)
		cpu[i] = demand{p.owed.CPUMilli, target.CPUMilli, p.asked.CPUMilli, p.ceiling.CPUMilli}
		memory[i] = demand{p.owed.MemoryBytes, target.MemoryBytes, p.asked.MemoryBytes, p.ceiling.MemoryBytes}
	}
	keep(cpu, unclaimed.CPUMilli)
	keep(memory, unclaimed.MemoryBytes)
	cpuMilli, cpuWaits := allot(cpu)
	memoryBytes, memoryWaits := allot(memory)

	for i, p := range pods {
		limits := api.Resources{CPUMilli: cpuMilli[i], MemoryBytes: memoryBytes[i]}
		if limits != p.asked {
			resizes = append(resizes, resize{p.name, limits, directionOf(p, limits)})
		}
	}
	slices.SortStableFunc(resizes, func(a, b resize) int { return cmp.Compare(a.direction, b.direction) })
	return resizes, cpuWaits || memoryWaits
}

// directionOf is the most urgent of what a resize does to either resource.
func directionOf(p podLimits, limits api.Resources) direction {
	restored := limits.Min(p.owed)
	switch {
	case restored.CPUMilli > p.asked.CPUMilli || restored.MemoryBytes > p.asked.MemoryBytes:
		return restore
	case limits.CPUMilli < p.asked.CPUMilli || limits.MemoryBytes < p.asked.MemoryBytes:
		return lower
	default:
		return raise
	}
}

// demand is one resource of one pod, in that resource's unit.
type demand struct{ owed, target, asked, ceiling int64 }

// unpaid is the most the pod may hold without being given anything above its user
// allocation.
func (d demand) unpaid() int64 { return max(d.ceiling, min(d.target, d.owed)) }

// keep leaves with donors what nobody can take of what they lend.
func keep(demands []demand, unclaimed int64) {
	for i := range demands {
		d := &demands[i]
		kept := max(0, min(unclaimed, d.owed-d.target))
		d.target += kept
		unclaimed -= kept
	}
}

// allot decides what each pod may ask for now, of one resource.
func allot(demands []demand) (limits []int64, waiting bool) {
	var room int64
	outstanding := false
	for _, d := range demands {
		room += d.owed - d.unpaid()
		outstanding = outstanding || d.ceiling > d.target
	}
	limits = make([]int64, len(demands))
	for i, d := range demands {
		need := d.target - d.unpaid()
		switch {
		case need <= 0:
			limits[i] = d.target
		case need > room && outstanding, room <= 0:
			// What pays for it is still in force elsewhere, or nobody gave it.
			limits[i] = max(min(d.target, d.owed), d.asked)
			waiting = waiting || outstanding
		default:
			granted := min(need, room)
			limits[i] = d.unpaid() + granted
			room -= granted
		}
	}
	return limits, waiting
}
