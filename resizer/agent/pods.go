package agent

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/cgroup"
)

// podInfo is what the cluster says about an opted-in pod of this node.
type podInfo struct {
	function  string // namespace/revision
	container string // id of the user's container; empty while it does not run
	// limits are those in the pod's spec, which the kubelet writes sooner or later.
	limits api.Resources
	// recorded says that Libra's controller was the last to change the spec's CPU limit.
	recorded bool
	// foreign says that another manager set a limit in the spec: then the pod is left alone.
	foreign bool
	// node says that the pod's CPU comes from the source node, and that its mode lets its weight change.
	node bool
	// strict says that the pod keeps all of its weight while it is owed.
	strict bool
	// borrows says that the pod's mode lets it have more than it is owed. memoryOwed is the bytes of
	// memory that it is owed, whatever its mode; 0 while that is not known.
	borrows    bool
	memoryOwed int64
	// allocation has the limits in the pod's Revision; zero where there are none, and while they are
	// not known.
	allocation api.Resources
	// safeguardPercent is how much of a lowered limit the container must use to get everything back;
	// 0 for a container known only from the journal.
	safeguardPercent int64
	// ceilingMilli is the most CPU that the container may use of what the node has idle; 0 if it may
	// use none of it.
	ceilingMilli int64
	// observed says why the pod is only observed; empty when it takes part.
	observed string
	// cgroup is the container's. Only the reflex uses it, and closes it. Nil while the container
	// does not run.
	cgroup cgroup.Container
}

// safeguard returns the share, 0 to 1, of a lowered limit in use at which the container gets its
// CPU back.
func (i *podInfo) safeguard() float64 {
	return float64(cmp.Or(i.safeguardPercent, settings.Default.SafeguardPercent)) / 100
}

// borrowsBeyond returns how much CPU, in milli, the pod is owed if it may borrow more from
// others, and 0 if it may not.
func (i *podInfo) borrowsBeyond() int64 {
	if !i.borrows || i.node || i.foreign || i.observed != "" {
		return 0
	}
	return i.allocation.CPUMilli
}

// podInfos hands what the Tracker knows to the reflex.
type podInfos struct {
	changed chan struct{} // of capacity 1

	mu sync.Mutex
	// met are the pods that the Tracker has begun to look at, byPod those that it has looked at; both by namespace/name.
	met          map[string]struct{}
	byPod        map[string]podInfo
	claimed      map[string]struct{} // pods whose cgroup the reflex has
	introduction introduction
}

func newPodInfos() *podInfos {
	return &podInfos{changed: make(chan struct{}, 1), met: map[string]struct{}{}, byPod: map[string]podInfo{}, claimed: map[string]struct{}{}}
}

// meet notes that the Tracker begins to look at a pod, so that it looks again if the settings change meanwhile.
func (p *podInfos) meet(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.met[pod] = struct{}{}
}

// set replaces what is known of a pod. The pod keeps its cgroup as long as its container is the
// same.
func (p *podInfos) set(pod string, info podInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, known := p.byPod[pod]
	if old.container == info.container && info.cgroup == nil {
		info.cgroup = old.cgroup
	} else {
		p.drop(pod)
	}
	p.byPod[pod] = info
	if !known || info != old {
		signal(p.changed)
	}
}

// keepLending lets a pod lend and use as it did, while that cannot be determined anew.
func (p *podInfos) keepLending(pod string, info *podInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.byPod[pod]
	if old.container != info.container {
		return
	}
	info.allocation, info.memoryOwed = old.allocation, cmp.Or(info.memoryOwed, old.memoryOwed)
	if old.node {
		info.node, info.ceilingMilli = old.node, old.ceilingMilli
	}
}

func (p *podInfos) remove(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.met, pod)
	if _, ok := p.byPod[pod]; !ok {
		return
	}
	p.drop(pod)
	delete(p.byPod, pod)
	signal(p.changed)
}

// drop closes a cgroup that the reflex never claimed. The caller holds the lock.
func (p *podInfos) drop(pod string) {
	if _, ok := p.claimed[pod]; !ok && p.byPod[pod].cgroup != nil {
		p.byPod[pod].cgroup.Close() //nolint:errcheck // nothing was written
	}
	delete(p.claimed, pod)
}

// names returns the names of all pods that were met.
func (p *podInfos) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.met))
}

// has says whether the pod's container is known, with its cgroup.
func (p *podInfos) has(pod, container string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	info, ok := p.byPod[pod]
	return ok && info.container == container && info.cgroup != nil
}

// claim returns everything that is known. From then on the caller owns the cgroups.
func (p *podInfos) claim() map[string]podInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.introduction.claimed()
	for pod, info := range p.byPod {
		if info.cgroup != nil {
			p.claimed[pod] = struct{}{}
		}
	}
	return maps.Clone(p.byPod)
}

// observed returns why a known pod is only observed. A reason found when its cgroup was opened
// stands while its container runs.
func (p *podInfos) observed(pod, bySpec string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if bySpec != "" {
		return bySpec
	}
	return p.byPod[pod].observed
}
