package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/resizer/backoff"
)

const (
	// introduceEvery is how often an agent that begins looks whether it knows its pods.
	introduceEvery = 100 * time.Millisecond
	// introducePatience is how long the others wait for a pod that cannot be looked at. What they use of
	// memory is told long before the controller takes limits back without being told.
	introducePatience = 10 * time.Second
)

// introduction is what is to come before an agent that begins speaks for the node's pods. One that knew none
// would be believed: limits of memory in use would be lowered, and a new epoch begin without what may
// go on in the pods since the last one. The zero value is of an agent that speaks for those that it knows.
type introduction struct {
	// awaited says that the pods which there are may not all be known, and hidden that the reflex does
	// not know them.
	awaited, hidden bool
	looked          map[string]struct{} // pods that were looked at, by the settings
}

// claimed notes that the reflex knows what is known now.
func (i *introduction) claimed() { i.hidden = i.awaited }

// await has the agent not speak for its pods until introduce is called.
func (p *podInfos) await() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.introduction = introduction{awaited: true, hidden: true, looked: map[string]struct{}{}}
}

// looked notes that a pod was looked at, by the settings.
func (p *podInfos) looked(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.introduction.awaited {
		p.introduction.looked[pod] = struct{}{}
	}
}

// unlooked are those of the pods that were not.
func (p *podInfos) unlooked(pods []corev1.Pod) (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range pods {
		name := pods[i].Namespace + "/" + pods[i].Name
		if _, ok := p.introduction.looked[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// introduce has the agent speak for its pods, as soon as the reflex knows them.
func (p *podInfos) introduce() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.introduction.awaited, p.introduction.looked = false, nil
	signal(p.changed)
}

// introduced says that the agent speaks for its pods.
func (p *podInfos) introduced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.introduction.hidden
}

// introduce has the agent speak for its pods once each that there is was looked at by the cluster's settings,
// and without one that cannot be when that has lasted.
func (t *Tracker) introduce(ctx context.Context) error {
	var since time.Time // since when it is known which pods there are
	for ; ctx.Err() == nil; backoff.Pause(ctx, t.clock, introduceEvery) {
		var pods corev1.PodList
		// The first List waits for the API server.
		if !t.lending.Synced() || t.kube.List(ctx, &pods) != nil {
			continue
		}
		now := t.clock.Now()
		if since.IsZero() {
			since = now
		}
		unknown := t.pods.unlooked(pods.Items)
		if len(unknown) > 0 && now.Sub(since) < introducePatience {
			continue
		}
		if len(unknown) > 0 {
			logf.FromContext(ctx).Info("the pool is told of the node's pods without those that could not be looked at yet", "pods", unknown)
		}
		t.pods.introduce()
		return nil
	}
	return nil
}
