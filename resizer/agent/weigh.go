package agent

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"libra.dev/libra/resizer/cgroup"
)

const (
	// weighEvery is how often weights are computed while a request is in flight: the work that
	// is left shrinks, and what its pod is owed changes.
	weighEvery = 100 * time.Millisecond
	// weighEarly is how early that may happen in a round that has another reason.
	weighEarly = 2 * time.Millisecond

	// attributeEvery is how old the reading of a pod's use may be when it is time for weights or
	// clamps to look at it. A Begin or End in another pod causes no reading: on a full node
	// those come more often than the pod's level could change.
	attributeEvery = 25 * time.Millisecond

	// A weight has to change by 1/smallPart of itself to be written.
	smallPart = 8
)

// weighing is what the reflex knows of a pod's weight. The zero value is a pod that was never
// in flight.
type weighing struct {
	file cgroup.PodWeight // nil until it is first needed
	group
	kubelet int64 // what the weight is without Libra
	inForce int64 // as it was read last
	due     int64 // as it was computed last
	// debtor is the container by which the journal names the pod; empty when it does not.
	debtor string
	// ownSince is since when the weight has been the kubelet's; zero while it is not.
	ownSince time.Time
	failing  bool // the last write failed

	flights flights
	cpu     time.Duration // what the container had used when it was read last
	cpuAt   time.Time     // when that was
	// endedAt is when the last flight that was seen ended, and endedCPU what the container had
	// used by then, which does not count as unseen use.
	endedAt  time.Time
	endedCPU time.Duration

	inFlight  bool
	contender contender
}

// weighed says whether the pod's weight may be changed.
func (e *entry) weighed() bool {
	return e.present && e.info.node && e.info.allocation.CPUMilli > 0 && e.info.cgroup != nil &&
		e.info.observed == "" && !e.leftAlone()
}

// weighs says whether the agent changes the pod's weight.
func (r *reflex) weighs(e *entry) bool { return !r.settings.Unweighted && e.weighed() }

// weigh computes and writes weights, when something began or ended, or when it is time.
func (r *reflex) weigh(ctx context.Context, beat bool) {
	now := r.clock.Now()
	void := r.lost || r.stopping
	tick := beat || void || !r.weighAt.IsZero() && r.weighAt.Sub(now) <= weighEarly
	if !tick && !r.reweigh && !r.ended {
		return
	}
	r.reweigh, r.ended = false, false
	if tick {
		r.repay(ctx)
	}

	// 1. Find the pods in flight. All others are due the kubelet's weight.
	var flying []*entry
	var pods []contender
	for _, e := range r.entries {
		w := &e.weighing
		was := w.inFlight
		w.inFlight = false
		if !void && r.weighs(e) {
			r.contend(e, now, tick)
		}
		if w.file != nil && (tick || w.inFlight != was) {
			r.readWeight(ctx, e)
		}
		w.due = w.kubelet
		if w.inFlight {
			w.contender.kubelet = w.kubelet
			flying, pods = append(flying, e), append(pods, w.contender)
		}
	}

	// 2. Compute their weights.
	if len(flying) > 0 {
		for i, weight := range weigh(pods, flying[0].weighing.limits()) {
			flying[i].weighing.due = weight
		}
	}

	// 3. Write the weights, group by group.
	groups := r.weightGroups()
	wrote := false
	for _, members := range groups {
		wrote = r.writeWeights(ctx, members) || wrote
	}
	if wrote {
		done := r.clock.Now()
		for _, begun := range r.begun {
			if since := done.Sub(begun); since < longestWake {
				r.metrics.weightWake.Record(ctx, since.Seconds())
			}
		}
	}
	r.begun = r.begun[:0]

	// 4. Check what is in force, and let go of weights that stay the kubelet's.
	r.checkShares(ctx, groups, now)
	r.settleWeights(now)
	if tick {
		r.countLevels(ctx, pods)
	}
	switch {
	case len(flying) == 0 && len(groups) == 0:
		r.weighAt = time.Time{}
	case tick || r.weighAt.IsZero():
		r.weighAt = now.Add(weighEvery)
	}
}

// longestWake is the greatest age of a Begin that counts as new: the agent could not have
// heard of an older one at once.
const longestWake = 5 * time.Second

func (w *weighing) limits() weightRange { return weightRange{w.file.Least(), w.file.Most()} }

// contend makes a contender of a pod that is in flight. With tick it reads what the pod used.
func (r *reflex) contend(e *entry, now time.Time, tick bool) {
	w := &e.weighing
	c := contender{pod: e.pod, allocation: e.info.allocation.CPUMilli, strict: e.info.strict}
	if known := w.flights.known; len(known) > 0 {
		if tick {
			r.attributeNow(e, now)
		}
		c.works = make([]work, len(known))
		for i, f := range known {
			c.works[i] = f.work
			c.ran = max(c.ran, f.ran(now))
		}
	} else if c.works = r.unseen(e); len(c.works) > 0 {
		a, _ := r.activity(e)
		c.ran = now.Sub(a.since)
	}
	if len(c.works) == 0 || !r.openWeight(e) {
		return
	}
	c.group, c.kubelet = w.group, w.kubelet
	w.contender, w.inFlight = c, true
}

// openWeight opens the weight of a pod and finds out what it is without Libra.
func (r *reflex) openWeight(e *entry) bool {
	w := &e.weighing
	if w.file != nil {
		return true
	}
	file, err := e.info.cgroup.PodWeight()
	var weight int64
	if err == nil {
		if weight, err = file.Read(); err == nil && weight < file.Least() {
			err = errors.New("it has no weight, because it only runs when nothing else wants to (cpu.idle)")
		}
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}
	if err != nil {
		if !w.failing && !cgroup.Gone(err) {
			r.log.Error(err, "leaving the CPU weight of a pod as it is", "pod", e.pod)
		}
		w.failing = true
		return false
	}
	namespace, _, _ := strings.Cut(e.pod, "/")
	w.file, w.failing = file, false
	w.group = group{filepath.Dir(file.Dir()), namespace}
	w.kubelet, w.inForce, w.ownSince = weight, weight, r.clock.Now()
	if d, ok := r.takeWeightDebt(file.Dir()); ok && d.replaced(weight) {
		r.journal.forget(d.Container, weightSuffix)
	} else if ok {
		w.kubelet, w.debtor, w.ownSince = d.Weight, d.Container, time.Time{}
	}
	return true
}

// readWeight reads a weight. If it is neither what the agent wrote nor what it was before,
// the kubelet has set a new one, at a resize of requests. From then on that is the pod's
// weight without Libra.
func (r *reflex) readWeight(ctx context.Context, e *entry) {
	w := &e.weighing
	found, err := w.file.Read()
	if err != nil {
		r.failWeight(e, err)
		return
	}
	if found == w.inForce {
		return
	}
	expected := w.inForce
	w.inForce = found
	if expected != w.kubelet {
		r.metrics.rewrites.Add(ctx, 1, ofWeight)
		if times, ok := r.repeats.tell(e.pod, "weight changed", r.clock.Now()); ok {
			r.log.Info("something other than the agent changed the CPU weight of a pod", "pod", e.pod, "written", expected, "found", found, "kubelets", w.kubelet, "times", times)
		}
	}
	if found != w.kubelet && found >= w.file.Least() {
		r.log.V(1).Info("the kubelet changed the CPU weight of a pod", "pod", e.pod, "was", w.kubelet, "is", found)
		w.kubelet = found
		if w.debtor != "" {
			r.oweWeight(e)
		}
	}
}

// failWeight handles a weight that could not be read or written.
func (r *reflex) failWeight(e *entry, err error) {
	w := &e.weighing
	if cgroup.Gone(err) {
		r.dropWeight(e)
		return
	}
	if !w.failing {
		r.log.Error(err, "could not read or write the CPU weight of a pod; retrying", "pod", e.pod)
	}
	w.failing = true
}

// dropWeight forgets the weight of a pod: its cgroup is gone, or the weight is the kubelet's.
func (r *reflex) dropWeight(e *entry) {
	w := &e.weighing
	if w.debtor != "" {
		r.journal.forget(w.debtor, weightSuffix)
	}
	if w.file != nil {
		w.file.Close() //nolint:errcheck // every write was checked
	}
	*w = weighing{flights: w.flights, cpu: w.cpu, cpuAt: w.cpuAt, endedAt: w.endedAt, endedCPU: w.endedCPU}
}

// weightGroups returns, by the group in which they exchange weights, the pods that are in
// flight or whose weights are not the kubelet's.
func (r *reflex) weightGroups() map[group][]*entry {
	groups := map[group][]*entry{}
	for _, e := range r.entries {
		if w := &e.weighing; w.file != nil && (w.inFlight || w.inForce != w.kubelet) {
			groups[w.group] = append(groups[w.group], e)
		}
	}
	return groups
}

// writeWeights writes the weights of a group: first those that are lowered, and then no more
// than that has left. Small changes are not worth a write, unless leaving them out would not
// leave enough for the others.
func (r *reflex) writeWeights(ctx context.Context, members []*entry) (wrote bool) {
	var left, planned int64
	for _, e := range members {
		w := &e.weighing
		left += w.kubelet - w.inForce
		planned += w.kubelet - w.inForce
		if w.matters() {
			planned -= w.due - w.inForce
		}
	}
	all := planned < 0
	ordered := slices.Clone(members)
	// A pod that is raised to its own weight does not wait for others.
	slices.SortStableFunc(ordered, func(a, b *entry) int { return cmp.Compare(a.weighing.urgency(), b.weighing.urgency()) })
	for _, e := range ordered {
		w := &e.weighing
		to := w.due
		if to > w.inForce && to > w.kubelet {
			to = min(to, max(w.inForce, w.kubelet, w.inForce+left))
		}
		if w.file == nil || to == w.inForce || !all && !w.matters() {
			continue
		}
		before := w.inForce
		wrote = r.writeWeight(ctx, e, to) || wrote
		left -= w.inForce - before
	}
	return wrote
}

// matters says whether the weight that is due is worth a write.
func (w *weighing) matters() bool {
	change := w.due - w.inForce
	return w.due == w.kubelet && !w.inFlight || change*smallPart >= w.inForce || -change*smallPart >= w.inForce ||
		change > 0 && w.belowFloor()
}

// belowFloor says whether the weight that was read is less than the pod keeps of its own, by
// more than rounding.
func (w *weighing) belowFloor() bool {
	return w.inFlight && allEighths*w.inForce <= w.contender.floorEighths(w.contender.owed(), w.file.Least())-allEighths
}

// urgency orders writes: the lowest come first.
func (w *weighing) urgency() int {
	switch {
	case w.due < w.inForce:
		return 0
	case w.due <= w.kubelet:
		return 1
	default:
		return 2
	}
}

// writeWeight writes one weight, unless the kubelet has written a new one since the last
// reading. That one must not be lost, so all weights are computed anew. The next tick reads
// the weight back.
func (r *reflex) writeWeight(ctx context.Context, e *entry, to int64) bool {
	w := &e.weighing
	kubelet := w.kubelet
	if r.readWeight(ctx, e); w.file == nil {
		return false
	}
	if w.kubelet != kubelet && to != kubelet {
		r.reweigh = true
		return false
	}
	if w.kubelet != kubelet {
		to = w.kubelet
	}
	if to == w.inForce {
		return false
	}
	if to != w.kubelet && w.debtor == "" && !r.oweWeight(e) {
		return false
	}
	direction := restore
	switch {
	case to == w.kubelet:
	case to < w.inForce:
		direction = lower
	default:
		direction = raise
	}
	err := w.file.Set(to)
	r.metrics.weighed(ctx, direction, resultOf(err))
	if err != nil {
		r.failWeight(e, err)
		return false
	}
	if log := r.log.V(2); log.Enabled() {
		log.Info("a weight was written", "pod", e.pod, "from", w.inForce, "to", to, "kubelets", w.kubelet, "direction", direction.String())
	}
	w.inForce, w.failing, w.ownSince = to, false, time.Time{}
	return true
}

// settleWeights lets go of weights that have been the kubelet's for a while. Until then the
// journal still names the pod, so that requests in a row do not each write to it. A weight
// that the kubelet sets meanwhile is seen within a second.
func (r *reflex) settleWeights(now time.Time) {
	for _, e := range r.entries {
		w := &e.weighing
		switch {
		case w.file == nil:
		case w.inFlight || w.inForce != w.kubelet:
			w.ownSince = time.Time{}
		case w.ownSince.IsZero() && !r.stopping:
			w.ownSince = now
		case r.stopping || !r.weighs(e) || now.Sub(w.ownSince) >= staleWindow:
			r.dropWeight(e)
		}
	}
}

// releaseWeight gives a pod the kubelet's weight back, because the weight is not to be
// changed any more or the pod's container is another. A write that fails now is retried
// later.
func (r *reflex) releaseWeight(ctx context.Context, e *entry) {
	w := &e.weighing
	if w.file != nil && w.inForce != w.kubelet {
		if !r.writeWeight(ctx, e, w.kubelet) && w.file != nil {
			d := r.weightDebt(e)
			d.found = w.inForce
			r.weightDebts = append(r.weightDebts, d)
			w.debtor = "" // it stays in the journal
		}
	}
	r.dropWeight(e)
	e.weighing = weighing{}
}

// countLevels records how many pods in flight are on each level.
func (r *reflex) countLevels(ctx context.Context, pods []contender) {
	var counts [lastLevel + 1]int64
	for _, p := range pods {
		counts[p.level()]++
	}
	for l, count := range counts {
		r.metrics.weightLevels.Record(ctx, count, ofLevel[l]...)
	}
}
