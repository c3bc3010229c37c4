package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/resizer/backoff"
)

const (
	// introduceEvery is how often a starting agent checks whether it knows its pods.
	introduceEvery = 100 * time.Millisecond
	// introducePatience is how long the other pods wait for one that cannot be looked at. It is short,
	// so that the controller hears what memory they use long before it would take limits back without
	// hearing.
	introducePatience = 10 * time.Second
)

// introduction is what must happen before a starting agent speaks for the node's pods. An agent
// that knew no pods would be believed: limits of memory in use would be lowered, and a new epoch
// would begin without what may go on in the pods since the last one. The zero value is an agent
// that speaks for the pods that it knows.
type introduction struct {
	// awaited says that some of the node's pods may not be known yet, and hidden that the reflex does
	// not know them.
	awaited, hidden bool
	looked          map[string]struct{} // pods looked at with the cluster's settings
}

// claimed notes that the reflex knows all that is known now.
func (i *introduction) claimed() { i.hidden = i.awaited }

// await keeps the agent from speaking for its pods until introduce is called.
func (p *podInfos) await() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.introduction = introduction{awaited: true, hidden: true, looked: map[string]struct{}{}}
}

// looked notes that a pod was looked at with the cluster's settings.
func (p *podInfos) looked(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.introduction.awaited {
		p.introduction.looked[pod] = struct{}{}
	}
}

// unlooked returns the names of the pods that were not looked at.
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

// introduce lets the agent speak for its pods as soon as the reflex knows them.
func (p *podInfos) introduce() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.introduction.awaited, p.introduction.looked = false, nil
	signal(p.changed)
}

// introduced says whether the agent speaks for its pods.
func (p *podInfos) introduced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.introduction.hidden
}

// introduce lets the agent speak for its pods once every pod has been looked at with the cluster's
// settings. After introducePatience it goes on without the pods that cannot be looked at.
func (t *Tracker) introduce(ctx context.Context) error {
	var since time.Time // when the pods were first listed
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
			logf.FromContext(ctx).Info("telling the pool about the node's pods except those that could not be looked at yet", "pods", unknown)
		}
		t.pods.introduce()
		return nil
	}
	return nil
}
