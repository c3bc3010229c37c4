package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"libra.dev/libra/loadtest/containers"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

func TestRequestsOfAllContainersMakeTheWeight(t *testing.T) {
	of := func(cpu string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}}
	}
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{of("100m"), of("25m"), {}}}}
	if got := requested(p); got != 125 {
		t.Errorf("%dm are requested, want 125m", got)
	}
}

func TestWhatLibraHasInHand(t *testing.T) {
	moved := weightsOf(180, 20)
	lending := view{balances: map[string]pool.Balance{"default/p": {Lent: res(1, 0)}}}
	crowd := []fault{{kind: kind{crowded: true}}}
	for name, c := range map[string]struct {
		trial trial
		view  view
		now   moment
		want  bool
	}{
		"a loan":                      {trial{source: api.SourceOwners}, lending, moment{}, true},
		"no loan":                     {trial{source: api.SourceOwners}, view{}, moment{weights: moved}, false},
		"weights":                     {trial{source: api.SourceNode}, view{}, moment{weights: moved}, true},
		"weights as the kubelet's":    {trial{source: api.SourceNode}, lending, moment{weights: weightsOf(100, 100)}, false},
		"weights, in a crowd":         {trial{source: api.SourceNode, faults: crowd}, view{}, moment{weights: moved, samples: []sample{ceilinged(2000)}}, false},
		"who is held, in a crowd":     {trial{source: api.SourceNode, faults: crowd}, view{}, moment{samples: []sample{ceilinged(700)}}, false},
		"weights and a held function": {trial{source: api.SourceNode, faults: crowd}, view{}, moment{weights: moved, samples: []sample{ceilinged(700)}}, true},
	} {
		w := &watcher{view: c.view, now: c.now}
		if got := w.has(c.trial); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestFaultsAreTakenIn(t *testing.T) {
	w := &watcher{tracker: newTracker(), managed: map[string]watched{}, weighed: map[containers.Pod]podWeight{}}
	now := func() moment { w.sample(); return w.now }
	away, changed := fault{kind: kind{part: agent}}, fault{kind: kind{part: sourcePart}}
	if m := now(); !m.agent || m.changing {
		t.Errorf("before: %+v", m)
	}
	w.begin(away)
	w.begin(away) // of a pair
	w.over(away)
	if now().agent {
		t.Error("an agent runs while a fault has it")
	}
	w.over(away)
	w.begin(changed)
	if m := now(); !m.agent || !m.changing {
		t.Errorf("while the source changes: %+v", m)
	}
	w.over(changed)
	if now().changing {
		t.Error("the source is still being changed though all is in order")
	}
}
