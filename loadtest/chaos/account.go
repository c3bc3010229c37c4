package main

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
)

// tolerated is how long the limits may add up to too much, from the restore of a donor
// until its borrowers are lowered. A pod that is away from its allocation for no longer
// than that does not count as left there: a restore takes time.
const tolerated = 100 * time.Millisecond

// request is the outcome of one request.
type request struct {
	function    string
	sent, ended time.Time
	err         string // empty when the answer was right
}

// excuse excuses requests that failed while they were in flight through a part that a fault
// killed.
type excuse struct {
	function string // empty: every function
	from, to time.Time
}

// covers reports whether the request was in flight at any time between the kill and the
// return of the killed part.
func (e excuse) covers(r request) bool {
	return (e.function == "" || e.function == r.function) && !r.sent.After(e.to) && !r.ended.Before(e.from)
}

func isExcused(r request, excuses []excuse) bool {
	return slices.ContainsFunc(excuses, func(e excuse) bool { return e.covers(r) })
}

// tally counts failed and excused requests, and returns the failed ones without an excuse.
func tally(requests []request, excuses []excuse) (failed, excused int, unexcused []request) {
	for _, r := range requests {
		if r.err == "" {
			continue
		}
		failed++
		if isExcused(r, excuses) {
			excused++
		} else {
			unexcused = append(unexcused, r)
		}
	}
	return failed, excused, unexcused
}

// longest returns the longest time that a request without an excuse took.
func longest(requests []request, excuses []excuse) (took time.Duration) {
	for _, r := range requests {
		if !isExcused(r, excuses) {
			took = max(took, r.ended.Sub(r.sent))
		}
	}
	return took
}

// episode is a period in which something held. It begins with the first sample that shows
// it and ends with the last.
type episode struct{ from, to time.Time }

func (e episode) length() time.Duration { return e.to.Sub(e.from) }

// excess is an episode in which the limits added up to more than is owed.
type excess struct {
	episode
	most int64    // the largest excess, in milli CPU
	at   []sample // the samples away from what they are owed, at the largest excess
}

func (e *excess) observe(now time.Time, by int64, samples []sample) {
	e.to = now
	if by <= e.most {
		return
	}
	e.most = by
	e.at = slices.DeleteFunc(slices.Clone(samples), func(s sample) bool { return s.limits == s.owed })
}

// breach is an episode in which a rule was broken.
type breach struct {
	episode
	what string // as first seen
}

// tracker turns moments into episodes.
type tracker struct {
	away   map[string][]episode // by pod, or by podWeight.name
	over   []excess
	broken map[string][]breach // by pod, or by podWeight.name
	shares *shares
	below  time.Duration // the longest time that a pod was below its ceiling
	lows   map[string]time.Time
	open   map[string]bool // keys of away whose last episode is in progress
	wrong  map[string]bool // keys of broken whose last episode is in progress
	high   bool            // the last episode of over is in progress
}

func newTracker() *tracker {
	return &tracker{away: map[string][]episode{}, broken: map[string][]breach{}, shares: newShares(),
		lows: map[string]time.Time{}, open: map[string]bool{}, wrong: map[string]bool{}}
}

// observe adds a moment.
func (t *tracker) observe(m moment) {
	open := map[string]bool{}
	off := func(of string) {
		open[of] = true
		if list := t.away[of]; t.open[of] {
			list[len(list)-1].to = m.at
		} else {
			t.away[of] = append(list, episode{m.at, m.at})
		}
	}
	for _, s := range m.samples {
		if !s.stranger && s.away(m.view.of(s.pod, m.at), m.holds()) {
			off(s.pod)
		}
		t.low(s, m.at)
	}
	for _, w := range m.weights {
		if !w.stranger && w.moved() && !m.weighs() {
			off(w.name())
		}
	}

	broken := map[string]bool{}
	for _, found := range m.wrong() {
		broken[found.of] = true
		if list := t.broken[found.of]; t.wrong[found.of] {
			list[len(list)-1].to = m.at
		} else {
			t.broken[found.of] = append(list, breach{episode{m.at, m.at}, found.what})
		}
	}

	by := m.excess()
	high := by > 0
	if high && !t.high {
		t.over = append(t.over, excess{episode: episode{from: m.at}})
	}
	if high {
		t.over[len(t.over)-1].observe(m.at, by, m.samples)
	}
	t.shares.observe(m)
	t.open, t.wrong, t.high = open, broken, high
}

// low tracks how long a pod has been below its ceiling.
func (t *tracker) low(s sample, now time.Time) {
	if s.limits.CPUMilli >= s.ceiling {
		delete(t.lows, s.pod)
		return
	}
	since, ok := t.lows[s.pod]
	if !ok {
		since = now
		t.lows[s.pod] = now
	}
	t.below = max(t.below, now.Sub(since))
}

// longestAway returns the longest time that a pod, or its weight, was away with nothing to
// cover it.
func (t *tracker) longestAway() time.Duration {
	var longest time.Duration
	for _, list := range t.away {
		for _, e := range list {
			longest = max(longest, e.length())
		}
	}
	return longest
}

// wholeAfter returns how long after end the last pod came back to its state at rest, or to
// one that something covers.
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

// violations returns the episodes in which the CPU limits in force added up to more than is
// owed, for longer than tolerated.
func (t *tracker) violations() []excess {
	return slices.DeleteFunc(slices.Clone(t.over), func(e excess) bool { return e.length() <= tolerated })
}

// breaches returns the episodes in which any other rule was broken.
func (t *tracker) breaches() []breach {
	return slices.Concat(slices.Concat(slices.Collect(maps.Values(t.broken))...), t.shares.breaches())
}

// forbidden lists the changes to a pod's spec that Libra must never make. first is the pod
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
