package main

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	// tolerated is how long the sum of the limits may be too high (from a donor's
	// restore until its borrowers are shrunk), and what is shorter is no sign that a
	// pod was left away from its allocation: a restore takes its time.
	tolerated = 100 * time.Millisecond
	// nudgeMilli is by how much the resizer raises a limit for a moment to make the
	// kubelet write it, where no agent tells that it did: docs/resizer.md.
	nudgeMilli = 1

	// A borrower whose loan ended keeps the memory that it uses and a margin of the
	// larger one of these; sampleSlack is what it may use less by the time it is read.
	marginBytes   = 32 << 20
	marginPercent = 10
	sampleSlack   = 8 << 20
)

// request is what became of one request.
type request struct {
	function    string
	sent, ended time.Time
	err         string // empty when the answer was right
}

// excuse is for failed requests that were in flight through what a fault killed.
type excuse struct {
	function string // empty: every one
	from, to time.Time
}

// covers says whether a request was on its way at any time from the kill until the
// killed part was back.
func (e excuse) covers(r request) bool {
	return (e.function == "" || e.function == r.function) && !r.sent.After(e.to) && !r.ended.Before(e.from)
}

// tally counts requests. Of the failed ones, those without an excuse are returned.
func tally(requests []request, excuses []excuse) (failed, excused int, unexcused []request) {
	for _, r := range requests {
		if r.err == "" {
			continue
		}
		failed++
		covered := false
		for _, e := range excuses {
			covered = covered || e.covers(r)
		}
		if covered {
			excused++
		} else {
			unexcused = append(unexcused, r)
		}
	}
	return failed, excused, unexcused
}

// view is what the pool last said.
type view struct {
	at       time.Time // zero: nothing yet
	balances map[string]pool.Balance
}

// of is what the pool entitles a pod to at a time. A pool that cannot be read for longer
// than a lease entitles nobody.
func (v view) of(pod string, now time.Time) pool.Balance {
	if v.at.IsZero() || now.Sub(v.at) > pool.LeaseTTL {
		return pool.Balance{}
	}
	return v.balances[pod]
}

// onLoan says whether anything is on loan.
func (v view) onLoan() bool {
	for _, b := range v.balances {
		if !b.Lent.IsZero() || !b.Borrowed.IsZero() {
			return true
		}
	}
	return false
}

// sample is one container at one moment.
type sample struct {
	pod          string // namespace/name
	owed, limits api.Resources
	inUse        int64 // bytes; known where the memory limit is above what is owed
}

// pinned says that the memory above what is owed is in use.
func (s sample) pinned() bool {
	margin := max(marginBytes, s.inUse*marginPercent/100)
	return s.limits.MemoryBytes > s.owed.MemoryBytes && s.limits.MemoryBytes <= s.inUse+margin+sampleSlack
}

// away says whether limits differ from what is owed in a way that the balance does not
// cover, each resource by itself.
func (s sample) away(b pool.Balance) bool {
	cpu := s.limits.CPUMilli < s.owed.CPUMilli && b.Lent.CPUMilli == 0 ||
		s.limits.CPUMilli > s.owed.CPUMilli && b.Borrowed.CPUMilli == 0
	memory := s.limits.MemoryBytes < s.owed.MemoryBytes && b.Lent.MemoryBytes == 0 ||
		s.limits.MemoryBytes > s.owed.MemoryBytes && b.Borrowed.MemoryBytes == 0 && !s.pinned()
	return cpu || memory
}

// whole says that all limits are what is owed, or pinned.
func whole(samples []sample) bool {
	for _, s := range samples {
		if s.away(pool.Balance{}) {
			return false
		}
	}
	return true
}

// episode is a time during which something was so. It begins with the first sample and
// ends with the last that shows it.
type episode struct{ from, to time.Time }

func (e episode) length() time.Duration { return e.to.Sub(e.from) }

// excess is an episode in which the limits added up to more than is owed.
type excess struct {
	episode
	most api.Resources // by which they did
	at   []sample      // those that were not at what they are owed, at the worst
}

func (e *excess) observe(now time.Time, by api.Resources, samples []sample) {
	e.to = now
	if e.most.Max(by) == e.most {
		return
	}
	e.most = e.most.Max(by)
	e.at = slices.DeleteFunc(slices.Clone(samples), func(s sample) bool { return s.limits == s.owed })
}

// tracker makes episodes of samples.
type tracker struct {
	away map[string][]episode // by pod
	over []excess
	last time.Time       // when the last samples were
	open map[string]bool // pods whose last episode goes on
	high bool            // the last of over goes on
}

func newTracker() *tracker {
	return &tracker{away: map[string][]episode{}, open: map[string]bool{}}
}

// observe takes the samples of one moment.
func (t *tracker) observe(now time.Time, v view, samples []sample) {
	var owed, limits api.Resources
	open := map[string]bool{}
	for _, s := range samples {
		owed = owed.Add(s.owed).Add(api.Resources{CPUMilli: nudgeMilli})
		limits = limits.Add(s.counted())
		if !s.away(v.of(s.pod, now)) {
			continue
		}
		open[s.pod] = true
		if t.open[s.pod] {
			list := t.away[s.pod]
			list[len(list)-1].to = now
		} else {
			t.away[s.pod] = append(t.away[s.pod], episode{now, now})
		}
	}
	high := limits.Max(owed) != owed
	if high && !t.high {
		t.over = append(t.over, excess{episode: episode{from: now}})
	}
	if high {
		t.over[len(t.over)-1].observe(now, limits.Max(owed).Sub(owed), samples)
	}
	t.last, t.open, t.high = now, open, high
}

// counted are the limits without memory that is kept because it is in use.
func (s sample) counted() api.Resources {
	if s.pinned() {
		return api.Resources{CPUMilli: s.limits.CPUMilli, MemoryBytes: s.owed.MemoryBytes}
	}
	return s.limits
}

// longestAway is the longest time that any pod was away without a lease.
func (t *tracker) longestAway() time.Duration {
	var longest time.Duration
	for _, list := range t.away {
		for _, e := range list {
			longest = max(longest, e.length())
		}
	}
	return longest
}

// wholeAfter is how long after end the last pod came back to what it is owed, or to
// what a lease covers.
func (t *tracker) wholeAfter(end time.Time) time.Duration {
	var last time.Duration
	for _, list := range t.away {
		for _, e := range list {
			if e.length() > tolerated {
				last = max(last, e.to.Sub(end))
			}
		}
	}
	return last
}

// violations are the times when more was in force than is owed in all.
func (t *tracker) violations() []excess {
	return slices.DeleteFunc(slices.Clone(t.over), func(e excess) bool { return e.length() <= tolerated })
}

// forbidden lists what of a pod's spec Libra must never have changed. first is the pod
// as it was first seen.
func forbidden(first, now *corev1.Pod) []string {
	managed := api.OptedIn(now.Labels)
	var found []string
	for _, c := range now.Spec.Containers {
		before, ok := containerOf(first, c.Name)
		switch {
		case !ok:
		case !managed || c.Name == api.QueueProxyContainer:
			if !sameList(before.Resources.Limits, c.Resources.Limits) || !sameList(before.Resources.Requests, c.Resources.Requests) {
				found = append(found, fmt.Sprintf("pod %s: the resources of %s changed", now.Name, c.Name))
			}
		default:
			if !sameList(before.Resources.Requests, c.Resources.Requests) {
				found = append(found, fmt.Sprintf("pod %s: the requests of %s changed", now.Name, c.Name))
			}
			limits, requests := api.FromList(c.Resources.Limits), api.FromList(c.Resources.Requests)
			if limits.Max(requests) != limits {
				found = append(found, fmt.Sprintf("pod %s: the limits of %s are %v, below its requests %v", now.Name, c.Name, limits, requests))
			}
		}
	}
	return found
}

func containerOf(p *corev1.Pod, name string) (corev1.Container, bool) {
	for _, c := range p.Spec.Containers {
		if c.Name == name {
			return c, true
		}
	}
	return corev1.Container{}, false
}

func sameList(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for name, quantity := range a {
		if other, ok := b[name]; !ok || quantity.Cmp(other) != 0 {
			return false
		}
	}
	return true
}
