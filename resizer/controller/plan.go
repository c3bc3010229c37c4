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
	// ceiling is the milli CPU that the limit is to be under source node, whatever is on
	// loan; 0 under owners. What has one neither lends CPU nor pays for what others get.
	ceiling int64
	// possible is the most that may be in force now: a change that was asked for
	// counts from then on when it raises, and only when it is seen in force when it
	// lowers.
	possible api.Resources
	// low and granted are the least and the most milli CPU that an agent which may be no
	// more may have left in the cgroup.
	low, granted int64
	// overtaken says that what the spec says was, or may yet be, put in force after the
	// agent had less to give.
	overtaken bool
	// awaited says that a living agent has not told yet that it acted on the pod's
	// balance; patient, that the pod may wait for what it lent.
	awaited, patient bool
	// unrecorded are the bytes of memory that the container may have been given without
	// the kubelet's knowledge; 0 when the spec knows of all.
	unrecorded int64
}

// direction of a resize; a lower one is issued first.
type direction int

const (
	restore direction = iota // back towards the user allocation, from below
	lower
	raise // above the user allocation
	nudge // no change at all, but for the kubelet to write the cgroup
)

func (d direction) String() string {
	return [...]string{"restore", "lower", "raise", "nudge"}[d]
}

// resize is one patch to issue now.
type resize struct {
	pod       string
	limits    api.Resources
	direction direction
}

// plan returns the resizes that may be issued now, in the order to issue them:
// restores; decreases; increases above the user allocation, of CPU only as far as
// decreases that are in force pay for them. waiting are the pods of whose own CPU others
// may have some in force yet; those that are patient get theirs when it is not.
//
// recorded says that an agent makes the transfers in the cgroups. Then nobody is given
// anything before its word that it has made them, for it may have died meanwhile.
// Without an agent, CPU that a borrower cannot take stays with its donors, and no
// borrower is given memory but that which goes with a change of its CPU: donors of
// memory keep theirs in the spec, for the kubelet could only lower the limit that kills.
//
// A pod with a ceiling gets that, of CPU, and is in nobody's way.
func plan(pods []podLimits, balances map[string]pool.Balance, recorded bool) (resizes []resize, waiting []string) {
	pods = slices.SortedFunc(slices.Values(pods), func(a, b podLimits) int { return cmp.Compare(a.name, b.name) })

	var cpu []demand // of the pods whose owners lend it
	var lends []int  // which of pods these are
	cpuMilli, waits := make([]int64, len(pods)), make([]bool, len(pods))
	memoryBytes := make([]int64, len(pods))
	var unclaimed int64 // milli CPU of what donors would give, beyond what balances say
	for _, b := range balances {
		unclaimed += b.Borrowed.CPUMilli - b.Lent.CPUMilli
	}
	for i, p := range pods {
		b := balances[p.name]
		due := p.due(b)
		target := due.Max(p.least).Min(p.most)
		memoryBytes[i] = target.MemoryBytes
		if !recorded || p.awaited {
			memoryBytes[i] = min(target.MemoryBytes, max(p.owed.MemoryBytes, p.asked.MemoryBytes, p.least.MemoryBytes))
		}
		if p.ceiling > 0 {
			cpuMilli[i] = target.CPUMilli
			continue
		}
		given := p.owed.CPUMilli - min(target.CPUMilli, p.owed.CPUMilli)
		taken := max(min(target.CPUMilli, due.CPUMilli), p.owed.CPUMilli) - p.owed.CPUMilli
		unclaimed += given - taken
		d := demand{owed: p.owed.CPUMilli, target: target.CPUMilli, asked: p.asked.CPUMilli, possible: p.possible.CPUMilli, low: p.low}
		d.awaited, d.patient = p.awaited, p.patient
		if !recorded {
			d.granted, d.reach = p.granted, p.reach()
		} else if d.reach = due.CPUMilli; p.overtaken {
			d.reach = p.possible.CPUMilli
		}
		d.written = memoryBytes[i] != p.asked.MemoryBytes
		cpu, lends = append(cpu, d), append(lends, i)
	}
	if !recorded {
		keep(cpu, unclaimed)
	}
	allotted, wait := allot(cpu)
	for j, i := range lends {
		cpuMilli[i], waits[i] = allotted[j], wait[j]
	}

	for i, p := range pods {
		if waits[i] {
			waiting = append(waiting, p.name)
			if p.patient {
				continue
			}
		}
		limits := api.Resources{CPUMilli: cpuMilli[i], MemoryBytes: memoryBytes[i]}
		if p.ceiling > 0 && limits.MemoryBytes != p.asked.MemoryBytes && limits.CPUMilli > p.asked.CPUMilli && p.asked.CPUMilli >= p.owed.CPUMilli {
			limits.CPUMilli = p.asked.CPUMilli // with the next patch, so that a refusal tells which of the two has no room
		}
		if limits.CPUMilli != p.asked.CPUMilli {
			// A change of CPU makes the kubelet write the memory limit that it knows, too,
			// and without a look at what is in use: below that, it would kill.
			limits.MemoryBytes = max(limits.MemoryBytes, p.unrecorded)
		}
		if p.ceiling == 0 && p.awaited && p.patient && limits.CPUMilli > p.low {
			continue // the kubelet would write more than the agent has told that it gave
		}
		if limits != p.asked {
			resizes = append(resizes, resize{p.name, limits, directionOf(p, limits)})
		}
	}
	slices.SortStableFunc(resizes, func(a, b resize) int { return cmp.Compare(a.direction, b.direction) })
	return resizes, waiting
}

// due is what the pod should have by its balance.
func (p podLimits) due(b pool.Balance) api.Resources {
	due := p.owed.Add(b.Borrowed).Sub(b.Lent)
	if p.ceiling > 0 {
		due.CPUMilli = p.ceiling
	}
	return due
}

// reach is the most milli CPU that may be in force.
func (p podLimits) reach() int64 { return max(p.possible.CPUMilli, p.granted) }

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
type demand struct {
	owed, target, asked, possible, low, granted int64

	reach   int64 // the most that may be in force
	awaited bool  // nothing is given yet
	patient bool  // what is its own can wait
	written bool  // the kubelet writes it with another resource in any case
}

// unpaid is the most the pod may hold without being given anything above its user
// allocation.
func (d demand) unpaid() int64 { return max(d.possible, min(d.target, d.owed)) }

// keep leaves with donors what nobody can take of what they lend.
func keep(demands []demand, unclaimed int64) {
	for i := range demands {
		d := &demands[i]
		kept := max(0, min(unclaimed, d.owed-d.target))
		d.target += kept
		unclaimed -= kept
	}
}

// allot decides what each pod may ask for now, of one resource, and for whose own there
// is no room.
func allot(demands []demand) (limits []int64, waits []bool) {
	// What of all that is owed cannot be in force; one is for the nudge of each. And what
	// of it the restores that are due leave.
	var spare, room int64
	outstanding := false
	for _, d := range demands {
		spare += d.owed - d.reach + nudgeMilli
		room += d.owed - max(d.unpaid(), d.granted)
		outstanding = outstanding || max(d.possible, d.granted) > d.target
	}
	limits, waits = make([]int64, len(demands)), make([]bool, len(demands))
	for i, d := range demands {
		// What the spec takes away may still be more than an agent left in the cgroup.
		if own := min(d.target, d.owed); (own != d.asked || d.written) && own > min(d.asked, d.low) {
			waits[i] = d.awaited || own-d.reach > spare
			if waits[i] && d.patient {
				limits[i] = d.asked
				continue
			}
			spare -= max(0, own-d.reach)
		}
		need := d.target - d.unpaid()
		counted := max(0, d.granted-d.unpaid()) // room is less by that already
		switch {
		case d.target > d.asked && d.awaited:
			limits[i] = max(min(d.target, d.owed), d.asked)
		case need <= 0:
			limits[i] = d.target
		case need > room+counted && outstanding, room+counted <= 0:
			// What pays for it is still in force elsewhere, or nobody gave it.
			limits[i] = max(min(d.target, d.owed), d.asked)
		default:
			given := min(need, room+counted)
			limits[i] = d.unpaid() + given
			room -= max(0, given-counted)
		}
	}
	return limits, waits
}
