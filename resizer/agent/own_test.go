package agent

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

func TestParticipants(t *testing.T) {
	p := newParticipants()
	p.set("a/b", "1")
	p.set("own:a/b", "1")
	p.remove("a/b")
	if !p.has("1") {
		t.Error("a pod that one of two named is forgotten when that removes it")
	}
	p.set("own:a/b", "2")
	if p.has("1") || !p.has("2") {
		t.Error("a pod that was made anew is known by its old UID")
	}
	p.remove("own:a/b")
	p.remove("own:a/b")
	if p.has("2") || len(p.byPod) != 0 || len(p.pods) != 0 {
		t.Errorf("pods that are gone are remembered: %v, %v", p.byPod, p.pods)
	}
}

func TestFollowOwn(t *testing.T) {
	pod := func(name string, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "libra-system", Name: name, UID: types.UID(name + "-uid"), Labels: labels}}
	}
	client := fake.NewClientset(pod("redis", map[string]string{partOfLabel: partOfLibra}), pod("other", nil))
	a := &Agent{settings: Settings{Node: node}, participants: newParticipants()}
	follow, err := a.FollowOwn(client)
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
	until("a pod of Libra's is taken for a bystander", func() bool { return a.participants.has("redis-uid") })
	if a.participants.has("other-uid") {
		t.Error("another's pod is taken for Libra's")
	}
	if err := client.CoreV1().Pods("libra-system").Delete(ctx, "redis", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("a pod that is gone is remembered", func() bool { return !a.participants.has("redis-uid") })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
