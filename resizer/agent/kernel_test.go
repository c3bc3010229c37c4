package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/agent"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

const mib = 1 << 20

// owed is so little memory that four times as much fits a quarter of a small machine's.
var owed = api.Resources{CPUMilli: 500, MemoryBytes: 64 * mib}

const donor, borrower = "default/donor", "default/borrower"

// lentPool is a pool in which the donor lends until its safeguard fires.
type lentPool struct {
	fired chan struct{}
	needs chan int64 // of the donor, as each heartbeat tells
	woken chan struct{}

	mu   sync.Mutex
	lent api.Resources
}

func (p *lentPool) Read(context.Context, string) (pool.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return pool.State{Epoch: "e", Open: true, Pods: map[string]pool.Balance{
		donor: {Lent: p.lent, Allocation: owed}, borrower: {Borrowed: p.lent, Allocation: owed},
	}}, nil
}

func (p *lentPool) Heartbeat(_ context.Context, _ string, hb pool.Heartbeat) (bool, error) {
	p.needs <- hb.Needs[donor]
	return true, nil
}

func (p *lentPool) Safeguard(context.Context, string, string, bool) (revokedMilli int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	revokedMilli, p.lent.CPUMilli = p.lent.CPUMilli, 0
	p.fired <- struct{}{}
	return revokedMilli, nil
}

func (p *lentPool) Ask(context.Context, string, string, int64) error { return nil }

func (p *lentPool) Next(ctx context.Context) (pool.Events, error) {
	select {
	case <-p.woken:
		return pool.Events{Changed: true}, nil
	case <-ctx.Done():
		return pool.Events{}, ctx.Err()
	}
}
func (p *lentPool) Skipped() int64                                 { return 0 }
func (p *lentPool) Observe(context.Context, api.Observation) error { return nil }

// group is one container as the kernel has it.
type group struct {
	*testing.T
	made *cgrouptest.Container
	seen cgroup.Container
}

func newGroup(t *testing.T) *group {
	t.Helper()
	g := &group{T: t, made: cgrouptest.New(t)}
	var err error
	if g.seen, err = cgroup.Open(g.made.Root, g.made.ID); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.seen.Close() }) //nolint:errcheck // nothing is left to write
	if err := g.seen.SetCPU(owed.CPUMilli); err != nil {
		t.Fatal(err)
	}
	g.made.Write(fmt.Sprint(owed.MemoryBytes), g.made.File("memory.limit_in_bytes", "memory.max"))
	return g
}

// until waits for a CPU limit to be in force, with the memory limit unchanged.
func (g *group) until(milli int64) {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	want := api.Resources{CPUMilli: milli, MemoryBytes: owed.MemoryBytes}
	for {
		r, err := g.seen.Read()
		if err != nil {
			g.Fatal(err)
		}
		if r.Limit == want {
			return
		}
		select {
		case <-ctx.Done():
			g.Fatalf("limits are %v, want %v", r.Limit, want)
		case <-tick.C:
		}
	}
}

// onKernel is an agent with two containers in this machine's own cgroups.
type onKernel struct {
	// resize gives a pod's spec another memory limit, in bytes.
	resize func(pod string, memory int64)
	*testing.T
	pool            *lentPool
	donor, borrower *group
	journal         string
	stop            func()
}

func runOnKernel(t *testing.T) *onKernel {
	t.Helper()
	k := &onKernel{
		T:     t,
		pool:  &lentPool{fired: make(chan struct{}, 100), needs: make(chan int64, 1000), woken: make(chan struct{}, 1)},
		donor: newGroup(t), borrower: newGroup(t), journal: t.TempDir(),
	}
	options, err := agent.ManagerOptions("n1")
	if err != nil {
		t.Fatal(err)
	}
	revision := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "f-00001", UID: "u1"}}
	revision.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: owed.List()}}}
	kube := fake.NewClientBuilder().WithScheme(options.Scheme).
		WithObjects(podOf(donor, k.donor.made.ID), podOf(borrower, k.borrower.made.ID), revision).
		WithInterceptorFuncs(interceptor.Funcs{Get: resizedByLibra}).Build()
	a, tracker, err := agent.New(clock.RealClock{}, kube, kube, owners{},
		agent.Settings{Node: "n1", CgroupRoot: k.donor.made.Root, JournalDir: k.journal, ProcRoot: "/proc", SampleLowered: 10 * time.Millisecond},
		agent.Redis{Pool: k.pool, Watcher: k.pool, Observer: k.pool}, sdkmetric.NewMeterProvider(), tracenoop.NewTracerProvider())
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range []string{donor, borrower} {
		if _, err := tracker.Reconcile(t.Context(), reconcile.Request{NamespacedName: named(pod)}); err != nil {
			t.Fatal(err)
		}
	}
	k.resize = func(name string, memory int64) {
		t.Helper()
		var pod corev1.Pod
		if err := kube.Get(t.Context(), named(name), &pod); err != nil {
			t.Fatal(err)
		}
		for i := range pod.Spec.Containers {
			if limits := pod.Spec.Containers[i].Resources.Limits; limits != nil {
				limits[corev1.ResourceMemory] = *resource.NewQuantity(memory, resource.BinarySI)
			}
		}
		if err := kube.Update(t.Context(), &pod); err != nil {
			t.Fatal(err)
		}
		if _, err := tracker.Reconcile(t.Context(), reconcile.Request{NamespacedName: named(name)}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(logf.IntoContext(t.Context(), testr.New(t)))
	ended := make(chan error, 1)
	go func() { ended <- a.Start(ctx) }()
	k.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(k.stop)
	return k
}

// resizedByLibra reads an object of which Libra set the memory limit, if it is a pod. The fake client knows of no
// subresources in managed fields.
func resizedByLibra(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	err := c.Get(ctx, key, obj, opts...)
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: actuate.FieldManager, Subresource: "resize", FieldsV1: &metav1.FieldsV1{Raw: fmt.Appendf(nil,
			`{"f:spec":{"f:containers":{"k:{\"name\":\"%s\"}":{"f:resources":{"f:limits":{"f:memory":{}}}}}}}`, api.UserContainer)}}}
	}
	return err
}

// owners makes the source owners everywhere.
type owners struct{}

func (owners) For(string) settings.Settings {
	return settings.Settings{Mode: api.ModeFull, MaxMode: api.ModeFull}
}
func (owners) Source(string, string) api.Source { return api.SourceOwners }
func (owners) Settings() settings.Settings      { return settings.Settings{} }
func (owners) OnChange(func())                  {}
func (owners) Synced() bool                     { return true }

func named(pod string) types.NamespacedName {
	namespace, name, _ := strings.Cut(pod, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func podOf(name, containerID string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: named(name).Namespace, Name: named(name).Name,
			Labels: map[string]string{serving.RevisionLabelKey: "f-00001", serving.RevisionUID: "u1"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: api.UserContainer, Resources: corev1.ResourceRequirements{Limits: owed.List()}},
		}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: api.UserContainer, ContainerID: "containerd://" + containerID, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
	}
}

func (k *onKernel) lend(volume api.Resources) {
	k.pool.mu.Lock()
	k.pool.lent = volume
	k.pool.mu.Unlock()
	k.pool.woken <- struct{}{}
}

// debts are the files of the journal that name the donor.
func (k *onKernel) debts() int {
	k.Helper()
	files, err := filepath.Glob(filepath.Join(k.journal, "*"+k.donor.made.ID+"*"))
	if err != nil {
		k.Fatal(err)
	}
	return len(files)
}

func TestKernelSafeguard(t *testing.T) {
	k := runOnKernel(t)
	l := k.donor.made.Start(t)
	k.lend(api.Resources{CPUMilli: 400, MemoryBytes: 32 * mib})
	k.borrower.until(900)
	k.donor.until(100)
	if k.debts() != 1 {
		t.Errorf("%d files of the journal name the lowered container, want 1", k.debts())
	}
	l.Do("burn")
	select {
	case <-k.pool.fired:
	case <-time.After(time.Minute):
		t.Fatal("the safeguard did not fire")
	}
	k.donor.until(owed.CPUMilli)
	k.borrower.until(owed.CPUMilli)
	l.Do("ping")
}

// A container that comes near its memory limit is reported before the kernel kills it, and
// more is asked for as it grows.
func TestKernelRescue(t *testing.T) {
	k := runOnKernel(t)
	l := k.donor.made.Start(t)
	needs := func(want int64) {
		t.Helper()
		deadline := time.After(time.Minute)
		for {
			select {
			case got := <-k.pool.needs:
				if got == want {
					return
				}
			case <-deadline:
				t.Fatalf("a need of %d bytes was not told", want)
			}
		}
	}
	needs(0)
	l.Do("hold %d", 47*mib)
	needs(2 * owed.MemoryBytes)
	k.resize(donor, 2*owed.MemoryBytes)
	k.donor.made.Write(fmt.Sprint(2*owed.MemoryBytes), k.donor.made.File("memory.limit_in_bytes", "memory.max"))
	l.Do("hold %d", 95*mib)
	needs(4 * owed.MemoryBytes)
	l.Do("hold 0")
	needs(0)
	if kills := k.donor.made.OOMKills(); kills != 0 {
		t.Errorf("the kernel killed %d processes", kills)
	}
}

// A container that grows beyond its memory limit is slowed down until the limit is raised, and
// not killed, though the raise takes as long as it may with a kubelet that has just handled
// the pod.
func TestKernelGuard(t *testing.T) {
	const late = time.Second
	k := runOnKernel(t)
	made := k.donor.made
	if !made.V2 {
		t.Skip("cgroup v1 has no guards of memory")
	}
	guard := func(want string) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for got := ""; got != want; time.Sleep(time.Millisecond) {
			if got = cgrouptest.Line(t, made.File("", "memory.high")); got != want && time.Now().After(deadline) {
				t.Fatalf("the guard is %s, want %s", got, want)
			}
		}
	}
	l := made.Start(t)
	l.Do("hold %d", 36*mib)
	guard(fmt.Sprint(56 * mib))
	l.Tell("hold %d", 96*mib)
	for asked := int64(0); asked < 2*owed.MemoryBytes; {
		select {
		case asked = <-k.pool.needs:
		case <-time.After(time.Minute):
			t.Fatal("no more was asked for")
		}
	}
	time.Sleep(late)
	k.resize(donor, 2*owed.MemoryBytes)
	made.Write(fmt.Sprint(2*owed.MemoryBytes), made.File("memory.limit_in_bytes", "memory.max"))
	guard(fmt.Sprint(112 * mib))
	l.Done()
	l.Do("hold 0")
	guard("max")
	l.Do("hold %d", 80*mib)
	guard(fmt.Sprint(112 * mib))
	k.stop()
	guard("max")
	if kills := made.OOMKills(); kills != 0 {
		t.Errorf("the kernel killed %d processes", kills)
	}
}

// The agent lowers again what the runtime puts back, and restores everything when it ends.
func TestKernelStaleValuesAndEnd(t *testing.T) {
	k := runOnKernel(t)
	k.lend(api.Resources{CPUMilli: 200})
	k.donor.until(300)
	made := k.donor.made
	made.Write(map[bool]string{false: "50000", true: "50000 100000"}[made.V2], made.File("cpu.cfs_quota_us", "cpu.max"))
	k.donor.until(300)
	k.stop()
	k.donor.until(owed.CPUMilli)
	k.borrower.until(owed.CPUMilli)
	if left, err := os.ReadDir(k.journal); err != nil || k.debts() != 0 {
		t.Errorf("the journal holds %v, %v after all was restored", left, err)
	}
}
