package scheduler

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// placedMost bounds how many pods are remembered per node. No more than that are placed on a node within a minute.
const placedMost = 256

// placed holds the pods that were placed lately. Their use or surplus shows up in a mean only gradually, as older
// samples leave it. Until then it is subtracted, so that pods placed one after the other do not all go to one node.
type placed struct {
	mu     sync.RWMutex
	byNode map[string][]placing
	swept  time.Time // when nodes on which nothing was placed lately were last forgotten
}

type placing struct {
	pod    types.UID
	at     time.Time
	role   role
	domain string
	milli  int64
}

// on returns how much of what a pod of a role finds on a node is already taken. Borrowers of all domains take idle CPU.
func (p *placed) on(node string, of role, domain string, owners bool, now time.Time) (milli int64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, l := range p.byNode[node] {
		left := window - now.Sub(l.at)
		if l.role == of && left > 0 && (!owners || l.domain == domain) {
			milli += l.milli * int64(min(left, window)) / int64(window)
		}
	}
	return milli
}

func (p *placed) add(node string, l placing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byNode == nil {
		p.byNode = map[string][]placing{}
	}
	if l.at.Sub(p.swept) >= window {
		p.swept = l.at
		maps.DeleteFunc(p.byNode, func(_ string, on []placing) bool {
			return len(on) == 0 || l.at.Sub(on[len(on)-1].at) >= window
		})
	}
	on := p.byNode[node]
	for len(on) > 0 && (l.at.Sub(on[0].at) >= window || len(on) >= placedMost) {
		on = on[1:]
	}
	p.byNode[node] = append(on, l)
}

func (p *placed) remove(node string, pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	on := p.byNode[node]
	for i := range on {
		if on[i].pod == pod {
			p.byNode[node] = append(on[:i:i], on[i+1:]...)
			return
		}
	}
}

// Reserve remembers the node that a pod goes to.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return nil
	}
	if c.order != nil {
		p.waiting.remove(pod)
	}
	if c.role != neither {
		p.placed.add(node, placing{pod: pod.UID, at: p.clock.Now(), role: c.role, domain: c.domain, milli: c.milli})
	}
	return nil
}

// Unreserve forgets the pod's node.
func (p *Plugin) Unreserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, node string) {
	p.placed.remove(node, pod.UID)
}
