package agent

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"libra.dev/libra/pkg/settings"
)

func TestParticipants(t *testing.T) {
	p := newParticipants()
	p.set("a/b", "1")
	p.set("platform:a/b", "1")
	p.remove("a/b")
	if !p.has("1") {
		t.Error("a pod that one of two named is forgotten when that removes it")
	}
	p.set("platform:a/b", "2")
	if p.has("1") || !p.has("2") {
		t.Error("a pod that was made anew is known by its old UID")
	}
	p.remove("platform:a/b")
	p.remove("platform:a/b")
	if p.has("2") || len(p.byPod) != 0 || len(p.pods) != 0 {
		t.Errorf("pods that are gone are remembered: %v, %v", p.byPod, p.pods)
	}
}

func TestFollowPlatform(t *testing.T) {
	pod := func(namespace, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid")}}
	}
	client := fake.NewClientset(pod(settings.Namespace, "redis"), pod(settings.AgentNamespace, "agent"), pod("gateways", "envoy"), pod("default", "other"))
	a := &Agent{settings: Settings{Node: node}, participants: newParticipants()}
	lending := &platformLending{}
	lending.set("gateways")
	follow, err := a.FollowPlatform(client, lending)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- follow.Start(ctx) }()
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	until("pods of Libra and of the platform are taken for bystanders", func() bool {
		return a.participants.has("redis-uid") && a.participants.has("agent-uid") && a.participants.has("envoy-uid")
	})
	if a.participants.has("other-uid") {
		t.Error("another's pod is taken for the platform's")
	}
	lending.set("default")
	lending.change()
	until("a namespace that is the platform's now is not", func() bool { return a.participants.has("other-uid") && !a.participants.has("envoy-uid") })
	until("nobody watches pods", func() bool { // the fake API server remembers nothing that happens between a list and a watch
		return slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool { return a.Matches("watch", "pods") })
	})
	if err := client.CoreV1().Pods(settings.Namespace).Delete(ctx, "redis", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("a pod that is gone is remembered", func() bool { return !a.participants.has("redis-uid") })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// platformLending has settings with a platform that a test changes.
type platformLending struct {
	fixedLending
	platform atomic.Value // settings.Namespaces
}

func (l *platformLending) set(platform settings.Namespaces) { l.platform.Store(platform) }

func (l *platformLending) Settings() settings.Settings {
	return settings.Settings{Platform: l.platform.Load().(settings.Namespaces)}
}
