package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// placedMost bounds how many pods are remembered per node. No more than that are placed on a node within a minute.
const placedMost = 256

// placed holds the pods that were placed on a node lately. Their use or surplus shows up in its means only gradually, as
// older samples leave them. Until then it is subtracted, so that pods placed one after the other do not all go to one node.
type placed struct {
	mu   sync.Mutex
	pods []placing
	left *reading // the node's last, or nil
}

type placing struct {
	pod    types.UID
	at     time.Time
	role   role
	domain string
	milli  int64
	taken  int64 // how much of milli is subtracted from left
}

// show subtracts what was placed lately from new means. From now on, what is placed is subtracted from those.
func (p *placed) show(r *reading, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(now)
	p.left = r
	for i := range p.pods {
		l := &p.pods[i]
		p.take(l, l.milli*int64(min(window-now.Sub(l.at), window))/int64(window))
	}
}

// any says whether anything was placed lately.
func (p *placed) any(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(now)
	return len(p.pods) > 0
}

func (p *placed) add(l placing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pods) >= placedMost {
		p.pods = p.pods[1:]
	}
	p.take(&l, l.milli)
	p.pods = append(p.pods, l)
}

func (p *placed) remove(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods = slices.DeleteFunc(p.pods, func(l placing) bool {
		if l.pod != pod {
			return false
		}
		p.take(&l, -l.taken)
		return true
	})
}

// take subtracts that much of what a pod takes. The caller holds mu.
func (p *placed) take(l *placing, milli int64) {
	l.taken = milli
	if p.left != nil {
		p.left.take(l.role, l.domain, milli)
	}
}

// forget drops the pods that the means show by now. The caller holds mu.
func (p *placed) forget(now time.Time) {
	p.pods = slices.DeleteFunc(p.pods, func(l placing) bool { return now.Sub(l.at) >= window })
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
	if on := c.placedOn(node); on != nil {
		on.add(placing{pod: pod.UID, at: p.clock.Now(), role: c.role, domain: c.domain, milli: c.milli})
	}
	return nil
}

// Unreserve forgets the pod's node.
func (p *Plugin) Unreserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node string) {
	if c := cycleOf(state); c != nil {
		if on := c.placedOn(node); on != nil {
			on.remove(pod.UID)
		}
	}
}

// placedOn returns nil for a pod that takes nothing from the node, or if nothing is known about the node.
func (c *cycle) placedOn(node string) *placed {
	if c.role == neither {
		return nil
	}
	if r := c.known.nodes[node]; r != nil {
		return r.placed
	}
	return nil
}
