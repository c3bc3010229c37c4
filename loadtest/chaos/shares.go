package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// reweighed is how long the weights of a group may add up to more than the kubelet's
	// because it has given one pod its own back, as it does at each resize: the agent sees
	// that within 100 ms.
	reweighed = 250 * time.Millisecond
	// joined is likewise, from when there are other pods than before: chaos learns of a pod
	// twice a second, and the agent when it does something. Until both have, what an agent
	// gives may be of a pod that has just ended.
	joined = time.Second
	// unweighed is likewise, while no agent runs: the controller has the kubelet write the
	// weights of all pods, one after the other.
	unweighed = 3 * time.Second

	// floorPart is the part of its own weight that each pod keeps.
	floorPart = 8
	// leastWeight is what the kubelet gives what is left of a pod that has ended, for as long as its
	// volumes are there: the least that cgroup v1 knows, which is more than v2's.
	leastWeight = 2

	// snapshotTries is how often weights are read until they are those of one time.
	snapshotTries = 5
)

// podWeight is the CPU weight of a pod at one time, in the kernel's unit.
type podWeight struct {
	pod             string // namespace/name
	parent          string // the folder below which it competes
	weight, kubelet int64  // in force, and as the kubelet gives it
	stranger        bool   // it did not opt in
}

func (w podWeight) name() string { return "the weight of " + w.pod }

// moved says that the weight is not the kubelet's.
func (w podWeight) moved() bool { return w.weight != w.kubelet }

// belowFloor says that the pod has less than it always keeps, but for one unit of rounding.
func (w podWeight) belowFloor() bool { return floorPart*(w.weight+1) < w.kubelet }

// remains says that it is not a pod's any more, but what is left of one: none of its containers are.
func (w podWeight) remains(containers bool) bool { return !containers && w.weight <= leastWeight }

// group are the pods whose weights are exchanged for one another.
func (w podWeight) group() string {
	namespace, _, _ := strings.Cut(w.pod, "/")
	return namespace + " below " + w.parent
}

// atOnce reads weights until two readings in a row are the same: what the second began with
// and the first ended with was in force together.
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
	// tolerated is how long it may last; 0 is not at all.
	tolerated time.Duration
}

// shares makes episodes of the weights of groups. An agent lowers before it raises, so a
// raise that leads to too much is wrong at once. What the kubelet writes is not the agent's
// doing, and it is to be put right in time.
type shares struct {
	over   map[string][]share     // by group
	open   map[string]bool        // the last of over goes on
	before map[string][]podWeight // by group
	// changed is when there came to be other pods in a group.
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
				breach:    breach{episode{from: m.at}, fmt.Sprintf("weights in %s added up to %d of %d: %s", name, inForce, kubelets, describeWeights(members))},
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

// samePods says whether weights are of the same pods, in the order of their names.
func samePods(before, now []podWeight) bool {
	return slices.EqualFunc(before, now, func(a, b podWeight) bool { return a.pod == b.pod })
}

// tolerance is how long too much may last that the same pods did not have before, or that came with a group.
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

// longest is the longest episode, tolerated or not.
func (s *shares) longest() time.Duration {
	var longest time.Duration
	for _, list := range s.over {
		for _, e := range list {
			longest = max(longest, e.length())
		}
	}
	return longest
}

// breaches are the episodes that are not tolerated.
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
