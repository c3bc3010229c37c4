package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/pkg/settings"
)

// partsOf returns a cluster with Libra's parts, the agent in a pod.
func partsOf() *fake.Clientset {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}
	}
	ofAgent := meta(settings.AgentNamespace, agentSet)
	client := fake.NewClientset(&appsv1.DaemonSet{ObjectMeta: ofAgent}, &corev1.Pod{ObjectMeta: ofAgent})
	for _, d := range deployments {
		_ = client.Tracker().Add(&appsv1.Deployment{ObjectMeta: meta(rig.LibraNamespace, d.name), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(d.replicas))}})
	}
	return client
}

// there returns how many replicas each part may have; an agent that may run nowhere has
// none.
func there(t *testing.T, client *fake.Clientset) map[part]int32 {
	t.Helper()
	found := map[part]int32{}
	for p, is := range deployments {
		d, err := client.AppsV1().Deployments(rig.LibraNamespace).Get(t.Context(), is.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		found[p] = *d.Spec.Replicas
	}
	set, err := client.AppsV1().DaemonSets(settings.AgentNamespace).Get(t.Context(), agentSet, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, nowhere := set.Spec.Template.Spec.NodeSelector[nowhereKey]; !nowhere {
		found[agent] = 1
	}
	return found
}

func TestWhatWasGoneIsBackWhenChaosIsInterrupted(t *testing.T) {
	for _, p := range []part{redisPart, agent} {
		client := partsOf()
		ctx, interrupt := context.WithCancel(t.Context())
		back := 0
		hit := target{fault: fault{kind: kind{part: p, action: gone}, length: time.Hour}, at: places[p], back: func() { back++ }}
		hit.running.pod.Name = agentSet
		client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.AfterFunc(10*time.Millisecond, interrupt)
			return false, nil, nil
		})
		c := &cluster{Rig: &rig.Rig{Kube: client}}
		if _, err := c.strike(ctx, hit, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v", p, err)
		}
		if got := there(t, client); got[p] != 1 || back != 1 {
			t.Errorf("%s is not back: %v, and that was told %d times", p, got, back)
		}
		interrupt()
	}
}

func TestWhatAKilledRunTookAwayIsBroughtBack(t *testing.T) {
	client := partsOf()
	c := &cluster{Rig: &rig.Rig{Kube: client}}
	for p := range deployments {
		if err := c.scale(t.Context(), p, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.placeAgents(t.Context(), map[string]any{nowhereKey: ""}); err != nil {
		t.Fatal(err)
	}
	if got := there(t, client); got[agent]+got[redisPart]+got[controller] != 0 {
		t.Fatalf("%v are there", got)
	}
	if err := c.bringAllBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := there(t, client); got[agent] != 1 || got[redisPart] != 1 || got[controller] != 2 {
		t.Errorf("%v are there", got)
	}
}

func TestWhatWasGoneComesBackInTheManifestsReplicas(t *testing.T) {
	for _, is := range deployments {
		path := filepath.Join("../../manifests/base", strings.TrimPrefix(is.name, "libra-"), "deployment.yaml")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var d appsv1.Deployment
		if err := yaml.UnmarshalStrict(data, &d); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if d.Name != is.name || ptr.Deref(d.Spec.Replicas, 1) != int32(is.replicas) {
			t.Errorf("%s has %d replicas of %s, chaos brings back %d of %s", path, ptr.Deref(d.Spec.Replicas, 1), d.Name, is.replicas, is.name)
		}
	}
}

func TestAnAgentThatCannotBeTakenAwayGoesOn(t *testing.T) {
	sleeper := startSleeper(t)
	client := partsOf()
	client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server does not answer")
	})
	hit := target{fault: fault{kind: kind{part: agent, action: gone}}, at: places[agent], processes: []*os.Process{sleeper}}
	hit.running.pod.Name = agentSet
	if err := (&cluster{Rig: &rig.Rig{Kube: client}}).vanish(t.Context(), hit); err == nil {
		t.Error("no error")
	}
	for deadline := time.Now().Add(10 * time.Second); state(t, sleeper.Pid) == 'T'; {
		if time.Now().After(deadline) {
			t.Fatal("it is still stopped")
		}
	}
}
