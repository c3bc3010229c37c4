package agent

import "sync"

// pending holds the latest value to call the pool with for each pod. The number of
// pods bounds it.
type pending[T any] struct {
	some chan struct{} // of capacity 1: something is pending

	mu    sync.Mutex
	byPod map[string]T
}

func newPending[T any]() *pending[T] {
	return &pending[T]{some: make(chan struct{}, 1), byPod: map[string]T{}}
}

func (p *pending[T]) put(pod string, v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byPod[pod] = v
	signal(p.some)
}

func (p *pending[T]) drop(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byPod, pod)
}

func (p *pending[T]) take() map[string]T {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.byPod
	p.byPod = map[string]T{}
	return taken
}
