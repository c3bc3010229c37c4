package main

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
)

// tolerated is how long the sum of the limits may be too high (from a donor's restore
// until its borrowers are shrunk), and what is shorter is no sign that a pod was left
// away from its allocation: a restore takes its time.
const tolerated = 100 * time.Millisecond

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

// episode is a time during which something was so. It begins with the first sample and
// ends with the last that shows it.
type episode struct{ from, to time.Time }

func (e episode) length() time.Duration { return e.to.Sub(e.from) }

// excess is an episode in which the limits added up to more than is owed.
type excess struct {
	episode
	most int64    // milli CPU by which they did
	at   []sample // those that were not at what they are owed, at the worst
}

func (e *excess) observe(now time.Time, by int64, samples []sample) {
	e.to = now
	if by <= e.most {
		return
	}
	e.most = by
	e.at = slices.DeleteFunc(slices.Clone(samples), func(s sample) bool { return s.limits == s.owed })
}

// breach is an episode of something wrong.
type breach struct {
	episode
	what string // at its beginning
}

// tracker makes episodes of moments.
type tracker struct {
	away   map[string][]episode // by pod, or by its weight
	over   []excess
	broken map[string][]breach // by whom it is
	shares *shares
	below  time.Duration // the longest that a pod was below its ceiling
	lows   map[string]time.Time
	open   map[string]bool // what of away goes on
	wrong  map[string]bool // what of broken goes on
	high   bool            // the last of over goes on
}

func newTracker() *tracker {
	return &tracker{away: map[string][]episode{}, broken: map[string][]breach{}, shares: newShares(),
		lows: map[string]time.Time{}, open: map[string]bool{}, wrong: map[string]bool{}}
}

// observe takes in a moment.
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

// low takes in whether a pod is below its ceiling.
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

// longestAway is the longest time that any pod, or its weight, was away and nothing covered
// it.
func (t *tracker) longestAway() time.Duration {
	var longest time.Duration
	for _, list := range t.away {
		for _, e := range list {
			longest = max(longest, e.length())
		}
	}
	return longest
}

// wholeAfter is how long after end the last pod came back to what it is at rest, or to
// what something covers.
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

// breaches are all the times when something else was against the rules.
func (t *tracker) breaches() []breach {
	return slices.Concat(slices.Concat(slices.Collect(maps.Values(t.broken))...), t.shares.breaches())
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
