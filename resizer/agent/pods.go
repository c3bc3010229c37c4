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

// podInfo is what the cluster tells of an opted-in pod of this node.
type podInfo struct {
	function  string // namespace/revision
	container string // id of the user's container; empty while it does not run
	// limits are those in the pod's spec, which the kubelet writes sooner or later.
	limits api.Resources
	// recorded says that Libra's controller was the last to change that of CPU.
	recorded bool
	// node says that the node is the source of the pod's CPU, and lends that its mode lets
	// its weight change.
	node, lends bool
	// borrows says that its mode lets it have more than it is owed, and memoryOwed is how
	// many bytes that are, whatever its mode; 0 while it is not known.
	borrows    bool
	memoryOwed int64
	// allocation are the limits in the pod's Revision; zero where there are none, and while
	// it is not known.
	allocation api.Resources
	// safeguardPercent is how much of what it was left it uses when it gets everything back; 0 of
	// one that only the journal tells of.
	safeguardPercent int64
	// ceilingMilli is up to how much CPU the container may use what the node has idle; 0 of one
	// that may use none of it.
	ceilingMilli int64
	// observed says why the pod is only observed; empty when it takes part.
	observed string
	// cgroup is the container's, for the reflex alone, which closes it. Nil while the
	// container does not run.
	cgroup cgroup.Container
}

// safeguard is the share, 0 to 1, of a lowered limit in use at which the container gets it back.
func (i *podInfo) safeguard() float64 {
	return float64(cmp.Or(i.safeguardPercent, settings.Default.SafeguardPercent)) / 100
}

// borrowsBeyond is how much CPU, in milli, it is owed that may borrow more from others; 0 when it
// may not.
func (i *podInfo) borrowsBeyond() int64 {
	if !i.borrows || i.node || i.observed != "" {
		return 0
	}
	return i.allocation.CPUMilli
}

// podInfos hands what the Tracker knows to the reflex.
type podInfos struct {
	changed chan struct{} // of capacity 1

	mu           sync.Mutex
	byPod        map[string]podInfo  // by namespace/name
	claimed      map[string]struct{} // pods whose cgroup the reflex has
	introduction introduction
}

func newPodInfos() *podInfos {
	return &podInfos{changed: make(chan struct{}, 1), byPod: map[string]podInfo{}, claimed: map[string]struct{}{}}
}

// set replaces what is known of a pod. The cgroup that it had stays with it while it
// is the same container's.
func (p *podInfos) set(pod string, info podInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.byPod[pod]
	if old.container == info.container && info.cgroup == nil {
		info.cgroup = old.cgroup
	} else {
		p.drop(pod)
	}
	p.byPod[pod] = info
	signal(p.changed)
}

// keepLending makes a pod lend and use as it did, while that cannot be told anew.
func (p *podInfos) keepLending(pod string, info *podInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.byPod[pod]
	if old.container != info.container {
		return
	}
	info.allocation, info.memoryOwed = old.allocation, cmp.Or(info.memoryOwed, old.memoryOwed)
	if old.node {
		info.node, info.lends, info.ceilingMilli = old.node, old.lends, old.ceilingMilli
	}
}

func (p *podInfos) remove(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.byPod[pod]; !ok {
		return
	}
	p.drop(pod)
	delete(p.byPod, pod)
	signal(p.changed)
}

// drop closes a cgroup that the reflex never had. The caller holds the lock.
func (p *podInfos) drop(pod string) {
	if _, ok := p.claimed[pod]; !ok && p.byPod[pod].cgroup != nil {
		p.byPod[pod].cgroup.Close() //nolint:errcheck // nothing was written
	}
	delete(p.claimed, pod)
}

// names are those of all pods that are known.
func (p *podInfos) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.byPod))
}

// function is that of a pod, as namespace/revision.
func (p *podInfos) function(pod string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byPod[pod].function
}

// has says whether the pod's container is known with its cgroup.
func (p *podInfos) has(pod, container string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	info, ok := p.byPod[pod]
	return ok && info.container == container && info.cgroup != nil
}

// claim returns all that is known. The cgroups are the caller's from then on.
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

// observed is why a pod that is known is only observed: what its cgroup told when it
// was opened stands while its container runs.
func (p *podInfos) observed(pod, bySpec string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if bySpec != "" {
		return bySpec
	}
	return p.byPod[pod].observed
}
