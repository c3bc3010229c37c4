package agent

import (
	"context"
	"time"
)

// checkShares checks that, by what was read, the pods of a group have no more than the
// kubelet gave them, and each pod in flight has what it keeps of its own.
func (r *reflex) checkShares(ctx context.Context, groups map[group][]*entry, now time.Time) {
	for g := range r.sharesWrong {
		if _, ok := groups[g]; !ok {
			delete(r.sharesWrong, g)
		}
	}
	for g, members := range groups {
		var inForce, kubelets int64
		below := ""
		for _, e := range members {
			w := &e.weighing
			inForce += w.inForce
			kubelets += w.kubelet
			if w.file != nil && w.belowFloor() {
				below = e.pod
			}
		}
		if inForce <= kubelets && below == "" {
			delete(r.sharesWrong, g)
			continue
		}
		x := r.sharesWrong[g]
		switch {
		case x.since.IsZero():
			x.since = now
		case !x.counted && now.Sub(x.since) > exceedTime:
			x.counted = true
			r.metrics.violated(ctx, ruleShares)
			r.log.Info("CPU weights of pods are out of bounds", "namespace", g.namespace, "parent", g.parent,
				"inForce", inForce, "kubelets", kubelets, "belowItsOwn", below)
		}
		r.sharesWrong[g] = x
	}
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
