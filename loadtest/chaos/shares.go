package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// reweighed is how long the weights of a group may add up to more than the kubelet's after the kubelet
	// has rewritten one pod's weight, as it does at each resize. The agent notices within 100 ms.
	reweighed = 250 * time.Millisecond
	// joined is that limit after the pods of a group have changed: chaos learns of a pod twice a second, and
	// the agent when it does something. Until both have, the weight that an agent gives may be that of a pod
	// that has just ended.
	joined = time.Second
	// unweighed is that limit while no agent runs: the controller has the kubelet write the weights of all
	// pods, one after the other.
	unweighed = 3 * time.Second

	// floorPart is the divisor: each pod keeps at least its own weight divided by it.
	floorPart = 8
	// leastWeight is the weight that the kubelet gives to the remains of a pod that has ended, for as long
	// as its volumes exist: the minimum of cgroup v1, which is more than that of v2.
	leastWeight = 2

	// snapshotTries is how often weights are read again to see them all at one time.
	snapshotTries = 5
)

// podWeight is the CPU weight of a pod at one time, in the kernel's unit.
type podWeight struct {
	pod             string // namespace/name
	parent          string // the cgroup in which it competes
	weight, kubelet int64  // in force, and as the kubelet sets it
	stranger        bool   // it did not opt in
}

func (w podWeight) name() string { return "the weight of " + w.pod }

// moved reports whether the weight differs from the kubelet's.
func (w podWeight) moved() bool { return w.weight != w.kubelet }

// belowFloor reports whether the pod has less than it always keeps, apart from one unit of rounding.
func (w podWeight) belowFloor() bool { return floorPart*(w.weight+1) < w.kubelet }

// remains reports whether the weight is that of the remains of a pod that has ended. containers says whether
// any of its containers runs.
func (w podWeight) remains(containers bool) bool { return !containers && w.weight <= leastWeight }

// group names the pods that exchange weight with one another.
func (w podWeight) group() string {
	namespace, _, _ := strings.Cut(w.pod, "/")
	return namespace + " below " + w.parent
}

// atOnce reads weights until two readings in a row are equal: then all were in force together when the first
// ended and the second began.
func atOnce(read func() []podWeight) ([]podWeight, bool) {
	before := read()
	for range snapshotTries {
		now := read()
		if slices.Equal(before, now) {
			return now, true
		}
		before = now
	}
	return nil, false
}

// share is an episode in which the weights of a group added up to more than the kubelet's.
type share struct {
	breach
	// tolerated is how long it may last; 0 means not at all.
	tolerated time.Duration
}

// shares turns the weights of groups into episodes. An agent lowers before it raises, so a raise that leads
// to too much is wrong at once. A weight that the kubelet writes is not the agent's doing, but must be put
// right in time.
type shares struct {
	over   map[string][]share     // by group
	open   map[string]bool        // the last episode of over is in progress
	before map[string][]podWeight // by group
	// changed is when the pods of a group last changed.
	changed map[string]time.Time
}

func newShares() *shares {
	return &shares{over: map[string][]share{}, open: map[string]bool{}, before: map[string][]podWeight{}, changed: map[string]time.Time{}}
}

func (s *shares) observe(m moment) {
	if m.weights == nil {
		return
	}
	groups := map[string][]podWeight{}
	for _, w := range m.weights {
		if !w.stranger {
			groups[w.group()] = append(groups[w.group()], w)
		}
	}
	open := map[string]bool{}
	for name, members := range groups {
		slices.SortFunc(members, func(a, b podWeight) int { return cmp.Compare(a.pod, b.pod) })
		if before := s.before[name]; before != nil && !samePods(before, members) {
			s.changed[name] = m.at
		}
		var inForce, kubelets int64
		for _, w := range members {
			inForce, kubelets = inForce+w.weight, kubelets+w.kubelet
		}
		if inForce <= kubelets {
			continue
		}
		open[name] = true
		list := s.over[name]
		if !s.open[name] {
			list = append(list, share{
				breach:    breach{episode{from: m.at}, fmt.Sprintf("the weights in %s added up to %d, more than the kubelet's %d: %s", name, inForce, kubelets, describeWeights(members))},
				tolerated: max(joined-m.at.Sub(s.changed[name]), tolerance(s.before[name], members)),
			})
		}
		last := &list[len(list)-1]
		last.to = m.at
		if !m.agent && last.tolerated > 0 {
			last.tolerated = unweighed
		}
		s.over[name] = list
	}
	s.open, s.before = open, groups
}

// samePods reports whether two lists of weights, both sorted by name, are of the same pods.
func samePods(before, now []podWeight) bool {
	return slices.EqualFunc(before, now, func(a, b podWeight) bool { return a.pod == b.pod })
}

// tolerance returns how long a new excess of a group may last. before has the group's previous weights, of
// the same or other pods; nil means that the group is new.
func tolerance(before, now []podWeight) time.Duration {
	if before == nil {
		return joined
	}
	was := map[string]podWeight{}
	for _, w := range before {
		was[w.pod] = w
	}
	raised, returned := false, false
	for _, w := range now {
		old, ok := was[w.pod]
		raised = raised || ok && w.weight > old.weight && w.weight > w.kubelet
		returned = returned || ok && old.weight < old.kubelet && !w.moved()
	}
	if raised && !returned {
		return 0
	}
	return reweighed
}

// longest returns the length of the longest episode, tolerated or not.
func (s *shares) longest() time.Duration {
	var longest time.Duration
	for _, list := range s.over {
		for _, e := range list {
			longest = max(longest, e.length())
		}
	}
	return longest
}

// breaches returns the episodes that are not tolerated.
func (s *shares) breaches() []breach {
	var all []breach
	for _, list := range s.over {
		for _, e := range list {
			if e.tolerated == 0 || e.length() > e.tolerated {
				all = append(all, e.breach)
			}
		}
	}
	return all
}

func describeWeights(weights []podWeight) string {
	var all []string
	for _, w := range weights {
		all = append(all, fmt.Sprintf("%s at %d of %d", w.pod, w.weight, w.kubelet))
	}
	return strings.Join(all, ", ")
}
