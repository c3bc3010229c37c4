package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/functions/inputs"
)

func TestComponentsInBoxStatus(t *testing.T) {
	const status = `COMPONENT        PID       UP     STATE
init             100       -      running
kube-apiserver   2000004   1m0s   running
kubelet          2000005   1m0s   running

node box is Ready
`
	found, err := processesOf([]byte(status))
	if err != nil {
		t.Fatal(err)
	}
	if found[apiServer].Pid != 2000004 || found[kubelet].Pid != 2000005 {
		t.Errorf("got %v", found)
	}
	for name, output := range map[string]string{
		"one has ended": strings.Replace(status, "2000005   1m0s   running", "-         -      ended: exit status 1", 1),
		"no box":        "The box is not running. Start it with `box up`.\n",
		"pid 1":         strings.Replace(status, "2000005", "1", 1),
	} {
		if _, err := processesOf([]byte(output)); err == nil || !strings.Contains(err.Error(), "box status") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// With several nodes, the kubelet is that of the functions' node; no worker has an API
// server.
func TestComponentsOfTheFunctionsNode(t *testing.T) {
	const status = `node box
COMPONENT        PID       UP     STATE
kube-apiserver   2000004   1m0s   running
kubelet          2000005   1m0s   running
w1               2000006   1m0s   running

node w1
COMPONENT        PID       UP     STATE
kubelet          2000007   1m0s   running

node w2
COMPONENT        PID       UP     STATE
kubelet          2000008   1m0s   running

node box is Ready
node w1 is Ready
node w2 is Ready
`
	found, err := processesOf([]byte(status))
	if err != nil {
		t.Fatal(err)
	}
	if found[apiServer].Pid != 2000004 || found[kubelet].Pid != 2000007 {
		t.Errorf("got %v", found)
	}
}

// Striking a pod that does not hold the lease would break nothing.
func TestOfSeveralPodsTheOneWithTheLeaseIsStruck(t *testing.T) {
	at := places[controller]
	replica := func(name string, restarts int32) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: at.namespace, Name: name, Labels: map[string]string{"app": "libra-resizer"}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "controller", Ready: true, ContainerID: "containerd://in-" + name, RestartCount: restarts}}},
		}
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: at.namespace, Name: at.lease}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("b")}}
	client := fake.NewClientset(replica("a", 0), replica("b", 1), lease)
	c := &cluster{Rig: &rig.Rig{Kube: client}}
	found, err := c.ready(t.Context(), controller)
	if err != nil || found.pod.Name != "b" || found.id != "in-b" {
		t.Errorf("got %s in pod %q, %v; want in-b in pod b, which holds the lease", found.id, found.pod.Name, err)
	}

	// The holder was restarted before, so it makes way for the other pod.
	client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		lease.Spec.HolderIdentity = ptr.To("a")
		return false, nil, client.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), lease, at.namespace)
	})
	if found, err = c.fresh(t.Context(), at); err != nil || found.pod.Name != "a" {
		t.Errorf("got pod %q, %v; want a", found.pod.Name, err)
	}
}

func TestSenderChecksTheAnswer(t *testing.T) {
	request := schedule.Request{Function: "uploader", Body: "hello", Expect: map[string]int64{"bytes": 5}}
	for name, c := range map[string]struct {
		status int
		did    map[string]int64
		want   string // in the error; empty if there should be none
	}{
		"right":       {http.StatusOK, map[string]int64{"bytes": 5}, ""},
		"wrong":       {http.StatusOK, map[string]int64{"bytes": 4}, "map[bytes:4], want map[bytes:5]"},
		"missing":     {http.StatusOK, nil, "bytes"},
		"unavailable": {http.StatusServiceUnavailable, nil, "503"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != "uploader.test" {
				t.Errorf("the host is %s", r.Host)
			}
			w.WriteHeader(c.status)
			_ = json.NewEncoder(w).Encode(map[string]any{"did": c.did})
		}))
		s := &sender{client: server.Client(), gateway: server.URL, hosts: map[string]string{"uploader": "uploader.test"}}
		err := s.send(context.Background(), request)
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		server.Close()
	}
}

func TestLoadCountsWhatWasUnderWayWhenItStopped(t *testing.T) {
	arrived, release := make(chan struct{}, 1000), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	hosts := map[string]string{}
	for _, f := range schedule.All {
		hosts[f] = f
	}
	s := &sender{client: server.Client(), gateway: server.URL, hosts: hosts, corpus: inputs.Corpus()}
	l := s.start(context.Background(), 1)
	<-arrived
	stopped := make(chan []request)
	go func() { stopped <- l.stop() }()
	<-l.sending // it sends no more, and waits
	close(release)
	requests := <-stopped
	if len(requests) == 0 {
		t.Fatal("the request that was under way is not counted")
	}
	for _, r := range requests {
		if r.err == "" || r.ended.Before(r.sent) || r.sent.IsZero() || l.busy(r.function) {
			t.Errorf("got %+v", r)
		}
	}
}

func TestWarmAsksUntilAllAnswerRightly(t *testing.T) {
	failures := map[string]int{"uploader": 2, "plain": 1}
	asked := map[string]int{}
	smallest := schedule.Smallest(schedule.Generate(1, time.Minute, inputs.Corpus()))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked[r.Host]++
		if asked[r.Host] <= failures[r.Host] {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"did": smallest[r.Host].Expect})
	}))
	defer server.Close()
	hosts := map[string]string{}
	for _, f := range schedule.All {
		hosts[f] = f
	}
	s := &sender{client: server.Client(), gateway: server.URL, hosts: hosts, corpus: inputs.Corpus()}
	if err := s.warm(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for _, f := range schedule.All {
		if want := failures[f] + warmAnswers; asked[f] != want {
			t.Errorf("%s was asked %d times, want %d", f, asked[f], want)
		}
	}
}
