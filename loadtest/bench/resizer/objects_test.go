package main

import (
	"bytes"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/eligible"
)

func TestPodsOfNode(t *testing.T) {
	s := &site{options: options{nodes: 10, pods: 500, optedIn: 40}}
	names := map[string]bool{}
	agents, optedIn := 0, 0
	for node := range s.nodes {
		pods := s.podsOf(node, nil)
		if len(pods) != 50 {
			t.Fatalf("node %d has %d pods", node, len(pods))
		}
		for _, pod := range pods {
			name := pod.Namespace + "/" + pod.Name
			if names[name] {
				t.Errorf("two pods are %s", name)
			}
			names[name] = true
			if pod.Spec.NodeName != nodeName(node) {
				t.Errorf("%s is on %s", name, pod.Spec.NodeName)
			}
			if pod.Namespace == settings.AgentNamespace {
				agents++
			}
			if api.OptedIn(pod.Labels) {
				optedIn++
				if why := eligible.Obstacle(pod, api.UserContainer); why != "" {
					t.Errorf("%s would be left alone: %s", name, why)
				}
			}
		}
	}
	if agents != 10 || optedIn != 200 || s.ceilings() != 100 {
		t.Errorf("%d agents, %d pods that opted in, %d with ceilings", agents, optedIn, s.ceilings())
	}
}

func TestStages(t *testing.T) {
	kinds := map[string]int{}
	for in := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(stages), 4096); ; {
		var object struct {
			Kind string
			Spec struct{ ResourceRef struct{ Kind string } }
		}
		if in.Decode(&object) != nil {
			break
		}
		kinds[object.Kind+object.Spec.ResourceRef.Kind]++
	}
	if kinds["KwokConfiguration"] != 1 || kinds["StagePod"] != 2 || kinds["StageNode"] != 2 {
		t.Errorf("KWOK is told %v", kinds)
	}
}

// A pod has its ceiling when its node reports it, not when it is only requested.
func TestHasCeiling(t *testing.T) {
	pod := functionPod("team-1", "p", "n", "f-00001", "u1")
	pod.Generation, pod.Status.ObservedGeneration = 1, 1
	if hasCeiling(pod) {
		t.Error("a pod has one that has its own limits")
	}
	pod.Spec.Containers[0].Resources.Limits = api.Resources{CPUMilli: nodeCPU}.List()
	pod.Generation = 2
	if hasCeiling(pod) {
		t.Error("a pod has one that its node has not seen")
	}
	pod.Status.ObservedGeneration = 2
	if !hasCeiling(pod) {
		t.Error("a pod has none")
	}
}
