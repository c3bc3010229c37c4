package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

// recall takes over what an earlier agent owed, and gives it back, whatever the
// state will say.
func (r *reflex) recall(ctx context.Context) {
	owed := r.journal.load()
	r.log.Info("taking over what an earlier agent owed", "containers", len(owed.limits), "ceilings", len(owed.ceilings), "weights", len(owed.weights))
	for _, d := range owed.limits {
		e := newEntry(d.Pod)
		e.debtor, e.left, e.forgetAt = d.Container, true, r.clock.Now().Add(unclaimedTime)
		e.info = podInfo{function: d.Function, container: d.Container}
		e.unsure = d.Allocation.CPUMilli != 0
		e.owe(d.Allocation.CPUMilli)
		if err := r.reopen(e); err != nil {
			r.log.Info("could not open a container that the journal names; retrying unless it has ended", "pod", d.Pod, "reason", err.Error())
		}
		r.add(e)
	}
	r.recallWeights(ctx, owed.weights)
	r.clamps.recall(ctx, r.log, r.journal, owed.ceilings)
	r.round(ctx)
}

// reopen opens a container that the journal names.
func (r *reflex) reopen(e *entry) (err error) {
	if e.info.cgroup, err = r.open(e.info.container); err != nil {
		e.info.cgroup, e.ended = nil, errors.Is(err, cgroup.ErrNotFound)
		return err
	}
	e.owe(e.allocation)
	return nil
}

func (r *reflex) find(pod string) (int, bool) {
	return slices.BinarySearchFunc(r.entries, pod, func(e *entry, pod string) int { return cmp.Compare(e.pod, pod) })
}

func (r *reflex) get(pod string) *entry {
	if i, ok := r.find(pod); ok {
		return r.entries[i]
	}
	return nil
}

// add adds an entry. A crash between two writes of the journal leaves two for one
// pod: add keeps the one whose container runs.
func (r *reflex) add(e *entry) {
	i, ok := r.find(e.pod)
	if !ok {
		r.entries = slices.Insert(r.entries, i, e)
		return
	}
	ended := e
	if r.entries[i].info.cgroup == nil {
		ended, r.entries[i] = r.entries[i], e
	}
	ended.close()
	r.journal.forget(ended.debtor, limitSuffix)
}

// drop forgets a pod.
func (r *reflex) drop(e *entry) {
	r.releaseWeight(context.Background(), e)
	if e.debtor != "" {
		r.journal.forget(e.debtor, limitSuffix)
	}
	e.close()
	if i, ok := r.find(e.pod); ok {
		r.entries = slices.Delete(r.entries, i, i+1)
	}
	if !slices.ContainsFunc(r.entries, func(o *entry) bool { return o.info.function == e.info.function }) {
		delete(r.most, e.info.function)
	}
	r.beatDue = true
}

// follow takes in what the Tracker knows.
func (r *reflex) follow(ctx context.Context) {
	known := r.pods.claim()
	for pod, info := range known {
		e := r.get(pod)
		if e == nil {
			e = newEntry(pod)
			r.add(e)
			r.metrics.safeguards.Add(ctx, 0, ofFunction(info.function)) // increase() sees only what comes after the first value
		}
		if info.observed != "" && info.observed != e.info.observed {
			r.log.Info("a pod is only observed", "pod", pod, "reason", info.observed)
		}
		if info.foreign && !e.info.foreign {
			r.log.Info("leaving a pod alone: its limits differ from its Revision's, and Libra did not set them: another manager of resources, a webhook or a LimitRange did",
				"pod", pod, "limits", info.limits, "allocation", info.allocation)
		}
		r.update(ctx, e, info)
		r.fly(e, r.clock.Now())
	}
	for _, e := range slices.Clone(r.entries) {
		if _, ok := known[e.pod]; ok || !e.present {
			continue
		}
		// The pod is gone or has opted out: first it gets what it is owed.
		e.present, e.replaced, e.forgetAt = false, true, r.clock.Now()
		if !e.managed() {
			r.drop(e)
		}
	}
	r.beatDue, r.reweigh = true, true
	r.clamps.stir(r.clock.Now())
}

// update takes in what the Tracker knows of a pod.
func (r *reflex) update(ctx context.Context, e *entry, info podInfo) {
	e.present = true
	if e.info.container == info.container {
		switch info.cgroup {
		case e.info.cgroup:
		case nil:
			info.cgroup = e.info.cgroup
		default:
			e.close()
			e.renew()
		}
		e.info = info
	} else {
		r.releaseWeight(ctx, e)
		e.close()
		e.renew()
		e.replaced = e.replaced || e.info.container != ""
		e.info, e.held, e.unsure = info, false, false
		if e.debtor != "" && info.container != "" {
			r.log.Info("a pod that the agent changed now runs another container", "pod", e.pod)
			r.inherit(e)
		}
	}
	e.owe(e.allocation)
}

// inherit replaces the container that ended with the pod's new one in the journal:
// the limit of the new one is that in the pod's spec.
func (r *reflex) inherit(e *entry) {
	ended := e.debtor
	if r.owe(e) {
		r.journal.forget(ended, limitSuffix)
	}
}

// owe writes what the container is owed to the journal, and reports success.
func (r *reflex) owe(e *entry) bool {
	err := r.journal.put(e.info.container, limitSuffix, debt{
		Version: journalVersion, Container: e.info.container, Pod: e.pod, Function: e.info.function, Allocation: api.Resources{CPUMilli: e.allocation},
	})
	if err != nil {
		if times, ok := r.repeats.tell(e.pod, "owing", r.clock.Now()); ok {
			r.log.Error(err, "leaving a container as it is, because the journal cannot record what it is owed", "pod", e.pod, "times", times)
		}
		return false
	}
	e.debtor = e.info.container
	return true
}
