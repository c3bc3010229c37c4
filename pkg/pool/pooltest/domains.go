package pooltest

import (
	"maps"
	"slices"

	"libra.dev/libra/pkg/api"
)

// room returns how much more of a resource a domain may borrow.
func (n *memoryNode) room(now int64, domain string, of func(*api.Resources) *int64) int64 {
	onLoan, own := n.onLoan(""), n.onLoan(domain)
	room := *of(&n.beat.Lendable) - *of(&onLoan)
	claiming := n.claiming(now, of)
	delete(claiming, domain)
	if len(claiming) > 0 {
		claiming[domain] = true
		room = min(room, n.part(claiming, of)-*of(&own))
	}
	return room
}

// claiming returns the domains in which an invocation wants more of a resource and the domain has
// some for it.
func (n *memoryNode) claiming(now int64, of func(*api.Resources) *int64) map[string]bool {
	domains := make(map[string]bool)
	for _, b := range n.begun {
		if n.claims(now, b, of) {
			domains[b.Domain] = true
		}
	}
	return domains
}

// part returns the most that a domain may have on loan while the claiming ones want some. Domains
// share what is lendable equally. A domain that has less and wants no more leaves the rest to the
// others.
func (n *memoryNode) part(claiming map[string]bool, of func(*api.Resources) *int64) int64 {
	onLoan := make(map[string]int64)
	for l, volume := range n.loans {
		if of := *of(&volume); of > 0 && !claiming[l.donor.domain] {
			onLoan[l.donor.domain] += of
		}
	}
	left, sharing := *of(&n.beat.Lendable), int64(len(claiming)+len(onLoan))
	for _, has := range slices.Sorted(maps.Values(onLoan)) {
		if has*sharing > left {
			break
		}
		left, sharing = left-has, sharing-1
	}
	return left / max(sharing, 1)
}

// evenOut takes CPU back from domains that came to have more than their part on loan while nobody
// else wanted any, and leaves it to domains that want it now. The borrowers that end first lose
// theirs first. The caller feeds all domains next. Memory on loan may be in use, and stays.
func (n *memoryNode) evenOut(now int64) {
	claiming := n.claiming(now, cpuOf)
	part, lacking, wanted := n.part(claiming, cpuOf), n.onLoan("").CPUMilli-n.beat.Lendable.CPUMilli, false
	for domain := range claiming {
		if lacks := part - n.onLoan(domain).CPUMilli; lacks > 0 {
			wanted, lacking = true, lacking+lacks
		}
	}
	if !wanted || lacking <= 0 {
		return
	}
	for _, b := range slices.Backward(slices.SortedFunc(maps.Values(n.begun), latestFirst)) {
		n.shrink(b, n.onLoan(b.Domain).CPUMilli-part)
	}
}

// shrink ends the given amount of CPU loans to b. The donors that end first get theirs back first.
func (n *memoryNode) shrink(b *begun, milli int64) {
	for _, p := range slices.Backward(n.donors(b.Domain)) {
		if back := min(milli, n.loans[loan{p, b}].CPUMilli); back > 0 {
			n.lend(p, b, cpuOf, -back)
			milli -= back
		}
	}
}

// claims says whether b wants more of a resource and its domain has some for it.
func (n *memoryNode) claims(now int64, b *begun, of func(*api.Resources) *int64) bool {
	borrowed := n.borrowed(b)
	if _, ok := n.beat.Pods[b.Pod]; !ok || *of(&borrowed) >= *of(&b.Want) || !b.pays(now) {
		return false
	}
	return slices.ContainsFunc(n.donors(b.Domain), func(p *memoryPod) bool {
		return p.name != b.Pod && n.expires(p) >= now+b.leastRemaining() && *of(&p.spare) > 0
	})
}

// inTurn returns the given domains in which an invocation wants something, by name, beginning
// after the domain that had the last turn.
func (n *memoryNode) inTurn(domains []string) (order []string) {
	for _, b := range n.begun {
		if !b.Want.IsZero() && slices.Contains(domains, b.Domain) {
			order = append(order, b.Domain)
		}
	}
	slices.Sort(order)
	order = slices.Compact(order)
	if next := slices.IndexFunc(order, func(domain string) bool { return domain > n.turn }); next > 0 {
		order = slices.Concat(order[next:], order[:next])
	}
	return order
}
