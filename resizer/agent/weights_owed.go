package agent

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
)

// weightsOwed says whether any weights are not the kubelet's.
func (r *reflex) weightsOwed() bool {
	return len(r.weightDebts) > 0 || slices.ContainsFunc(r.entries, func(e *entry) bool {
		return e.weighing.file != nil && e.weighing.inForce != e.weighing.kubelet
	})
}

// weightDebt returns what the journal is to say of a pod.
func (r *reflex) weightDebt(e *entry) weightDebt {
	w := &e.weighing
	return weightDebt{
		Version: journalVersion, Container: cmp.Or(w.debtor, e.info.container), Pod: e.pod, Function: e.info.function,
		Path: r.belowRoot(w.file.Dir()), Weight: w.kubelet,
	}
}

// belowRoot returns a cgroup's directory relative to where cgroups are mounted, which
// another agent may find elsewhere. A v1 hierarchy may be a symlink there.
func (r *reflex) belowRoot(dir string) string {
	for _, evaluate := range []func(string) (string, error){func(root string) (string, error) { return root, nil }, filepath.EvalSymlinks} {
		root, err := evaluate(r.settings.CgroupRoot)
		if err != nil {
			continue
		}
		if path, err := filepath.Rel(root, dir); err == nil && filepath.IsLocal(path) {
			return path
		}
	}
	return dir // refused when it is read back
}

// oweWeight makes the journal name the pod.
func (r *reflex) oweWeight(e *entry) bool {
	d := r.weightDebt(e)
	if err := r.journal.put(d.Container, weightSuffix, d); err != nil {
		if times, ok := r.repeats.tell(e.pod, "owing its weight", r.clock.Now()); ok {
			r.log.Error(err, "leaving the CPU weight of a pod as it is, because the journal cannot record the kubelet's weight", "pod", e.pod, "times", times)
		}
		return false
	}
	e.weighing.debtor = d.Container
	return true
}

// recallWeights takes up the weights that an earlier agent changed, and gives them back.
func (r *reflex) recallWeights(ctx context.Context, debts []weightDebt) {
	r.weightDebts = debts
	r.repay(ctx)
	if len(debts) > 0 {
		r.log.Info("gave back the weights that an earlier agent had changed", "pods", len(debts), "left", len(r.weightDebts))
	}
}

// repay gives back the weights of pods that are not weighed.
func (r *reflex) repay(ctx context.Context) {
	keep := r.weightDebts[:0]
	for _, d := range r.weightDebts {
		err := r.repayOne(&d)
		result := resultOf(err)
		r.metrics.weighed(ctx, restore, result)
		if result == resultFailed {
			r.log.V(1).Info("could not restore the CPU weight of a pod; retrying", "pod", d.Pod, "weight", d.Weight, "reason", err.Error())
			keep = append(keep, d)
			continue
		}
		r.journal.forget(d.Container, weightSuffix)
	}
	r.weightDebts = keep
}

func (r *reflex) repayOne(d *weightDebt) error {
	file, err := r.openPod(filepath.Join(r.settings.CgroupRoot, d.Path))
	if err != nil {
		return err
	}
	found, err := file.Read()
	if err == nil && !d.replaced(found) {
		d.found = found
		err = file.Set(d.Weight)
	}
	return errors.Join(err, file.Close())
}

// replaced says whether somebody else has written a weight since giving it back failed.
func (d *weightDebt) replaced(found int64) bool { return d.found != 0 && found != d.found }

// takeWeightDebt removes and returns the debt to the pod whose cgroup is dir. From then
// on the caller owes it.
func (r *reflex) takeWeightDebt(dir string) (weightDebt, bool) {
	i := slices.IndexFunc(r.weightDebts, func(d weightDebt) bool { return d.Path == r.belowRoot(dir) })
	if i < 0 {
		return weightDebt{}, false
	}
	d := r.weightDebts[i]
	r.weightDebts = slices.Delete(r.weightDebts, i, i+1)
	return d, true
}
