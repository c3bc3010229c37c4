package invocation

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api"
)

var revID = types.NamespacedName{Namespace: "ns", Name: "rev-00001"}

// started is when the containers of newPod started.
var started = metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))

type podOption func(*corev1.Pod)

func of(revision string) podOption {
	return func(p *corev1.Pod) { p.Labels[serving.RevisionLabelKey] = revision }
}

func in(namespace string) podOption {
	return func(p *corev1.Pod) { p.Namespace = namespace }
}

// newPod is a running pod of revID on node-a.
func newPod(name, ip string, options ...podOption) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: revID.Namespace,
			Name:      name,
			Labels:    map[string]string{api.EnabledLabel: api.EnabledValue, serving.RevisionLabelKey: revID.Name},
		},
		Spec: corev1.PodSpec{
			NodeName: "node-a",
			Containers: []corev1.Container{
				{Name: api.UserContainer, Resources: corev1.ResourceRequirements{Limits: res(1000, 512).List()}},
				{Name: api.QueueProxyContainer},
			},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			PodIPs:     []corev1.PodIP{{IP: ip}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: api.QueueProxyContainer, ContainerID: "containerd://queue-proxy"},
				{
					Name:        api.UserContainer,
					ContainerID: "containerd://" + name,
					State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
				},
			},
		},
	}
	for _, o := range options {
		o(pod)
	}
	return pod
}

func runPods(t testing.TB, objects ...runtime.Object) *Pods {
	t.Helper()
	return runPodsOf(t, fake.NewClientset(objects...))
}

func runPodsOf(t testing.TB, client kubernetes.Interface) *Pods {
	t.Helper()
	pods, err := NewPods(client, zaptest.NewLogger(t).Sugar())
	if err != nil {
		t.Fatal("NewPods() =", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		pods.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	if !cache.WaitForCacheSync(ctx.Done(), pods.informer.HasSynced) {
		t.Fatal("The pods were not listed")
	}
	// A fake API server does not remember changes between a list and a watch.
	if client, ok := client.(*fake.Clientset); ok {
		waitFor(t, "a watch of pods", func() bool {
			return slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool { return a.Matches("watch", "pods") })
		})
	}
	// The slots of a test hear of them a moment later.
	pods.synced.Store(true)
	return pods
}

func TestFind(t *testing.T) {
	const ip = "10.0.0.1"
	container := func(i int) func(limits corev1.ResourceList) podOption {
		return func(limits corev1.ResourceList) podOption {
			return func(p *corev1.Pod) { p.Spec.Containers[i].Resources.Limits = limits }
		}
	}
	user, queueProxy := container(0), container(1)
	in := func(phase corev1.PodPhase) podOption { return func(p *corev1.Pod) { p.Status.Phase = phase } }

	for _, tc := range []struct {
		name      string
		pods      []runtime.Object
		container string
		want      target
		wantOK    bool
	}{
		{name: "managed", pods: []runtime.Object{newPod("a", ip)},
			want: target{pod: "ns/a", node: "node-a"}, wantOK: true},
		{name: "second address", pods: []runtime.Object{newPod("a", "fd00::1", func(p *corev1.Pod) {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		})}, want: target{pod: "ns/a", node: "node-a"}, wantOK: true},
		{name: "unknown", pods: []runtime.Object{newPod("a", "10.0.0.2")}},
		{name: "not scheduled", pods: []runtime.Object{newPod("a", ip, func(p *corev1.Pod) { p.Spec.NodeName = "" })}},
		{name: "not opted in", pods: []runtime.Object{newPod("a", ip, func(p *corev1.Pod) { delete(p.Labels, api.EnabledLabel) })}},
		{name: "address used again", pods: []runtime.Object{
			newPod("a", ip, of("rev-00002")), newPod("b", ip, in(corev1.PodFailed)), newPod("c", ip, in(corev1.PodSucceeded)), newPod("d", ip),
		}, want: target{pod: "ns/d", node: "node-a"}, wantOK: true},
		{name: "queue-proxy with limits", pods: []runtime.Object{newPod("a", ip, queueProxy(res(100, 0).List()))},
			want: target{pod: "ns/a", node: "node-a", why: reasonQueueProxyLimits}, wantOK: true},
		{name: "no limits", pods: []runtime.Object{newPod("a", ip, user(nil))},
			want: target{pod: "ns/a", node: "node-a", why: reasonNoLimits}, wantOK: true},
		{name: "only memory", pods: []runtime.Object{newPod("a", ip, user(res(0, 64).List()))},
			want: target{pod: "ns/a", node: "node-a"}, wantOK: true},
		{name: "other name of the container", container: "app", pods: []runtime.Object{newPod("a", ip, func(p *corev1.Pod) {
			p.Spec.Containers[0].Name = "app"
		})}, want: target{pod: "ns/a", node: "node-a"}, wantOK: true},
		{name: "no such container", container: "app", pods: []runtime.Object{newPod("a", ip)},
			want: target{pod: "ns/a", node: "node-a", why: reasonNoLimits}, wantOK: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.container == "" {
				tc.container = api.UserContainer
			}
			got, ok := runPods(t, tc.pods...).find(ip, revID, tc.container)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(target{}), cmpopts.IgnoreFields(target{}, "container", "started")); ok != tc.wantOK || diff != "" {
				t.Errorf("find() = %v, want %v; (-want, +got):\n%s", ok, tc.wantOK, diff)
			}
		})
	}
}

// Before pods have been read, a program would refuse all that Knative sends to them.
func TestNoProgramIsAskedBeforePodsAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(newPod("a", ipA))
		var allowed atomic.Bool
		client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !allowed.Load(), nil, apierrors.NewForbidden(corev1.Resource("pods"), "", nil)
		})
		pods, err := NewPods(client, zap.NewNop().Sugar())
		if err != nil {
			t.Fatal(err)
		}
		placer, err := newPlacer(Options{Pods: pods, Programs: programs{"": only("node-a")}})
		if err != nil {
			t.Fatal(err)
		}
		m := &Manager{placer: placer, pods: pods}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go pods.Run(ctx)
		time.Sleep(time.Minute)
		if p := m.program(newRevision()); p != nil {
			t.Errorf("without pods %v is asked", p)
		}
		allowed.Store(true)
		time.Sleep(time.Minute)
		if p := m.program(newRevision()); p != only("node-a") {
			t.Errorf("with pods %v is asked", p)
		}
	})
}

// A pod that gets the address of one that has ended is not taken for that one.
func TestAnEndedPodHasNoAddress(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded} {
		client := fake.NewClientset(newPod("b", ipA, onNode("node-b")))
		pods := runPodsOf(t, client)
		slots := placement.NewSlots(nil, nil)
		if err := pods.follow(slots); err != nil {
			t.Fatal(err)
		}
		at := func() string {
			c := slots.Of(revID, 10).Take(ipA+":8012", placement.Ask{})
			c.Release()
			return c.Node
		}
		waitFor(t, "the pod", func() bool { return at() == "node-b" })
		ended := newPod("a", ipA, onNode("node-a"), func(p *corev1.Pod) { p.Status.Phase = phase })
		if _, err := client.CoreV1().Pods("ns").Create(t.Context(), ended, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		last := newPod("c", ipB)
		if _, err := client.CoreV1().Pods("ns").Create(t.Context(), last, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the pod that came after it", slots.Of(revID, 10).HasChoice)
		if got := at(); got != "node-b" {
			t.Errorf("after one that is %s a request counts on %q, want node-b", phase, got)
		}
		for _, name := range []string{"a", "c"} {
			if err := client.CoreV1().Pods("ns").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "the deletion", func() bool { return !slots.Of(revID, 10).HasChoice() })
		if got := at(); got != "node-b" {
			t.Errorf("after one that was %s is gone a request counts on %q, want node-b", phase, got)
		}
	}
}

func TestContainerOfAPod(t *testing.T) {
	const ip = "10.0.0.1"
	waiting := func(p *corev1.Pod) { p.Status.ContainerStatuses[1].State = corev1.ContainerState{} }
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		want target
	}{
		{"runs", newPod("a", ip), target{pod: "ns/a", node: "node-a", container: "containerd://a", started: started.Time}},
		{"does not run", newPod("a", ip, waiting), target{pod: "ns/a", node: "node-a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, _ := runPods(t, tc.pod).find(ip, revID, api.UserContainer)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(target{})); diff != "" {
				t.Error("find() (-want, +got):\n" + diff)
			}
		})
	}
}

func TestServedContainers(t *testing.T) {
	pods := runPods(t, newPod("a", "10.0.0.1"))
	a, _ := pods.find("10.0.0.1", revID, api.UserContainer)
	if pods.hasServed(a) {
		t.Error("a new container has served")
	}
	pods.noteServed(a)
	if !pods.hasServed(a) {
		t.Error("the container has not served")
	}
	restarted := a
	restarted.container = "containerd://another"
	if pods.hasServed(restarted) {
		t.Error("a restarted container has served")
	}
	unknown := a
	unknown.container = ""
	if pods.noteServed(unknown); pods.hasServed(unknown) {
		t.Error("a container that does not run has served")
	}

	if err := pods.informer.GetStore().Delete(newPod("a", "10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	pods.forget(newPod("a", "10.0.0.1"))
	// A request outlives its pod.
	if pods.noteServed(a); len(pods.served) != 0 {
		t.Errorf("of a pod that is gone there is left: %v", pods.served)
	}
}

func TestSamplesOfAQuietTimeAreNotMadeUpFor(t *testing.T) {
	s, now := newSamples(), time.Unix(1_800_000_000, 0)
	taken := func(requests int) (n int) {
		for range requests {
			if s.take(now) {
				n++
			}
		}
		return n
	}
	if n := taken(1000); n != samplesFirst+1 {
		t.Errorf("%d of the first 1000 taken, want the first %d and one", n, samplesFirst)
	}
	for _, quiet := range []time.Duration{sampleEvery, time.Hour} {
		now = now.Add(quiet)
		if n := taken(1000); n != 1 {
			t.Errorf("%d of 1000 taken after %v, want 1", n, quiet)
		}
	}
	now = now.Add(sampleEvery / 2)
	if n := taken(1000); n != 0 {
		t.Errorf("%d of 1000 taken %v after the last, want none", n, sampleEvery/2)
	}
}

// Any call of a burst is reported, and after many calls a few are reported soon enough.
func TestSamplesAreOfAnyCall(t *testing.T) {
	const burst, bursts = 10, 5000
	s, now := newSamples(), time.Unix(1_800_000_000, 0)
	var taken [burst]int
	for range bursts {
		now = now.Add(2 * sampleEvery)
		for call := range burst {
			if s.take(now) {
				taken[call]++
			}
			now = now.Add(time.Millisecond)
		}
	}
	for call, n := range taken {
		if n < bursts/burst/2 || n > bursts/burst*2 {
			t.Errorf("call %d of a burst was reported %d times of %d, want a tenth", call, n, bursts)
		}
	}
	for range 100_000 {
		s.take(now)
	}
	n := 0
	for range 100 {
		if now = now.Add(sampleEvery); s.take(now) {
			n++
		}
	}
	if n < 50 {
		t.Errorf("%d of 100 calls were reported that come every %v after many had come at once, want most", n, sampleEvery)
	}
}

func TestDeletedPodIsForgotten(t *testing.T) {
	client := fake.NewClientset(newPod("a", "10.0.0.1"))
	pods := runPodsOf(t, client)
	a, _ := pods.find("10.0.0.1", revID, api.UserContainer)
	pods.noteServed(a)
	if err := client.CoreV1().Pods("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the deletion", func() bool { return !pods.hasServed(a) })
}
