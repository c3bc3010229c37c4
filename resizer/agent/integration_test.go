package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

// idleNode is a pool that hears that the node has plenty of idle CPU, whatever else runs on the
// test machine.
type idleNode struct {
	*pool.Redis
	pods *atomic.Int64 // that the last heartbeat named
}

func (n idleNode) Heartbeat(ctx context.Context, node string, hb pool.Heartbeat) (bool, error) {
	hb.Lendable = api.Resources{CPUMilli: 10_000, MemoryBytes: 1 << 40}
	open, err := n.Redis.Heartbeat(ctx, node, hb)
	if err == nil {
		n.pods.Store(int64(len(hb.Pods)))
	}
	return open, err
}

// site is a node with two containers in this machine's own cgroups, and a Redis.
type site struct {
	*testing.T
	root    string
	journal string
	pools   *pool.Redis
	redis   int // process
	pods    []*corev1.Pod
	seen    map[string]cgroup.Container // by pod
	made    map[string]*cgrouptest.Container
	named   *atomic.Int64 // pods in the last heartbeat of the newest agent
	begun   int
	load    *cgrouptest.Load // of the borrower, once something is lent
}

func newSite(t *testing.T) *site {
	addr := redistest.Start(t)
	s := &site{T: t, journal: t.TempDir(), pools: pool.NewRedis(redisconn.MustParse(addr)), seen: map[string]cgroup.Container{}, made: map[string]*cgrouptest.Container{}}
	t.Cleanup(func() { s.pools.Close() }) //nolint:errcheck // the test ends

	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	info, err := client.Info(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, pid, _ := strings.Cut(info, "process_id:")
	if _, err := fmt.Sscan(pid, &s.redis); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.signal(syscall.SIGCONT) })

	for _, name := range []string{"donor", "borrower"} {
		made := cgrouptest.New(t)
		made.Prefer() // or it may not get to use what it has
		s.root = made.Root
		c, err := cgroup.Open(made.Root, made.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() }) //nolint:errcheck // nothing is left to write
		if err := c.SetCPU(userLimits.CPUMilli); err != nil {
			t.Fatal(err)
		}
		pod := podRunning(made.ID)
		pod.Name = name
		pod.Labels = map[string]string{serving.RevisionLabelKey: "f-00001", serving.RevisionUID: "u1"}
		pod.Spec.Containers[1].Resources.Limits = userLimits.List()
		s.pods = append(s.pods, pod)
		s.seen["default/"+name], s.made["default/"+name] = c, made
	}

	renewing, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var renewals sync.WaitGroup
	renewals.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for renewing.Err() == nil {
			s.pools.Renew(renewing, node, "activator") //nolint:errcheck // the next one may do
			select {
			case <-ticker.C:
			case <-renewing.Done():
			}
		}
	})
	t.Cleanup(func() {
		stop()
		renewals.Wait()
	})
	return s
}

// agent makes an agent of the node that knows its pods.
func (s *site) agent() *Agent {
	s.Helper()
	options, err := ManagerOptions(node)
	if err != nil {
		s.Fatal(err)
	}
	kube := fake.NewClientBuilder().WithScheme(options.Scheme).WithObjects(s.pods[0], s.pods[1], revisionOf(userLimits)).Build()
	a, tracker := s.make(kube)
	for _, pod := range s.pods {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if _, err := tracker.Reconcile(s.Context(), reconcile.Request{NamespacedName: name}); err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { a.containers.put(name.String(), nil) })
	}
	return a
}

// make makes an agent of the node, and the Tracker that tells it of the pods.
func (s *site) make(kube client.Reader) (*Agent, *Tracker) {
	s.Helper()
	settings := Settings{Node: node, CgroupRoot: s.root, JournalDir: s.journal, ProcRoot: "/proc", SampleLowered: 10 * time.Millisecond,
		Unclamped: true} // pods of other tests would be bystanders
	s.named = new(atomic.Int64)
	a, tracker, err := New(clock.RealClock{}, kube, kube, &fixedLending{mode: api.ModeFull, source: api.SourceOwners}, settings,
		Redis{Pool: idleNode{s.pools, s.named}, Watcher: s.pools.Watch(node), Observer: s.pools}, sdkmetric.NewMeterProvider(), tracenoop.NewTracerProvider())
	if err != nil {
		s.Fatal(err)
	}
	return a, tracker
}

// run runs an agent until end is called.
func (s *site) run(start func(context.Context) error) (end func()) { return runPart(s.T, start) }

// crashing is the Start of an agent that is killed at the end: it gives nothing back.
func crashing(a *Agent) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := a.lockJournal(ctx); err != nil {
			return err
		}
		var group sync.WaitGroup
		for _, f := range []func(context.Context){a.sampleAll, a.watch, a.link.run, a.reflex.run} {
			group.Go(func() { f(ctx) })
		}
		group.Wait()
		return a.reflex.journal.close()
	}
}

func (s *site) signal(sig syscall.Signal) {
	if err := syscall.Kill(s.redis, sig); err != nil {
		s.Errorf("sending %v to Redis: %v", sig, err)
	}
}

// lend begins two invocations: the donor lends 200m to the borrower, which uses it. lend returns
// the donor.
func (s *site) lend() (donor string) {
	s.Helper()
	// A pod lends nothing in an invocation that begins before the agent names the pod.
	eventually(s.T, "the pool is open to both pods", func() bool {
		state, err := s.pools.Read(s.Context(), node)
		return err == nil && state.Open && s.named.Load() == int64(len(s.pods))
	})
	if s.load == nil {
		s.load = s.made["default/borrower"].Start(s.T)
	}
	s.load.Do("burn")
	s.begun++
	donor = fmt.Sprint("donor-", s.begun)
	volume := api.Resources{CPUMilli: 200}
	for _, inv := range []pool.Invocation{
		{ID: donor, Pod: "default/donor", Surplus: volume},
		{ID: fmt.Sprint("borrower-", s.begun), Pod: "default/borrower", Want: volume},
	} {
		inv.Function, inv.Domain, inv.Owner = "default/f-00001", "default", "activator"
		inv.Duration, inv.Allocation = time.Hour, userLimits
		if _, err := s.pools.Begin(s.Context(), node, inv); err != nil {
			s.Fatal(err)
		}
	}
	s.until("lent", 300, 700)
	return donor
}

// end ends a donor's invocation, and the one that began with it.
func (s *site) end(donor string) {
	s.Helper()
	for _, id := range []string{donor, strings.Replace(donor, "donor", "borrower", 1)} {
		if _, err := s.pools.End(s.Context(), node, pool.Ending{ID: id}); err != nil {
			s.Fatal(err)
		}
	}
}

// until waits for CPU limits to be in force.
func (s *site) until(what string, donor, borrower int64) {
	s.Helper()
	eventually(s.T, what, func() bool {
		var got [2]int64
		for i, pod := range []string{"default/donor", "default/borrower"} {
			r, err := s.seen[pod].Read()
			if err != nil {
				s.Fatal(err)
			}
			got[i] = r.Limit.CPUMilli
		}
		return got == [2]int64{donor, borrower}
	})
}

// Loans of a real pool come into force in real cgroups. They end there with the invocation, when
// another agent follows one that was killed, when Redis hangs, and when the agent stops.
func TestWithRedisAndCgroups(t *testing.T) {
	s := newSite(t)
	a := s.agent()
	kill := s.run(crashing(a))
	s.end(s.lend())
	s.until("the donor's invocation has ended", 500, 500)
	s.lend()
	kill()
	s.until("left by the agent that was killed", 300, 700)

	s.signal(syscall.SIGSTOP)
	stop := s.run(s.agent().Start)
	s.until("given back by the next agent, without Redis", 500, 500)
	s.signal(syscall.SIGCONT)
	s.end("donor-2")

	s.lend()
	s.signal(syscall.SIGSTOP)
	hung := time.Now()
	s.until("Redis hangs for a lease", 500, 500)
	t.Logf("restored %v after Redis hung", time.Since(hung))
	s.signal(syscall.SIGCONT)
	s.end("donor-3")

	s.lend()
	stop()
	s.until("the agent has stopped", 500, 500)
	if debts := (&journal{dir: s.journal}).load().limits; len(debts) != 0 {
		t.Errorf("debts %v are left by an agent that stopped", debts)
	}
}

// An invocation without a prediction borrows by what it turns out to want, here from an idle donor,
// and gives back what it does not use.
func TestWantsAreFoundByUse(t *testing.T) {
	s := newSite(t)
	s.run(s.agent().Start)
	donor := s.lend()
	s.end(donor)
	for _, inv := range []pool.Invocation{
		{ID: "idle", Pod: "default/donor", IdleCPUMilli: 400},
		{ID: "unpredicted", Pod: "default/borrower", WantMostMilli: 1500},
	} {
		inv.Function, inv.Domain, inv.Owner, inv.Allocation = "default/f-00001", "default", "activator", userLimits
		if _, err := s.pools.Begin(s.Context(), node, inv); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.pools.End(s.Context(), node, pool.Ending{ID: "idle"}); err != nil {
		t.Fatal(err)
	}
	s.until("it was throttled, and an idle donor has some", 100, 900)
	s.load.Do("rest")
	s.until("what is not used goes back", 500, 500)
	s.load.Do("burn")
	s.until("it wants some again", 100, 900)
}

// An agent that starts without an API server and without Redis gives back what the one before it
// owed.
func TestStartWithoutAPIServer(t *testing.T) {
	s := newSite(t)
	kill := s.run(crashing(s.agent()))
	s.lend()
	kill()
	s.signal(syscall.SIGSTOP)

	options, err := ManagerOptions(node)
	if err != nil {
		t.Fatal(err)
	}
	options.Metrics.BindAddress, options.HealthProbeBindAddress = "0", "0"
	options.Controller.SkipNameValidation = ptr.To(true) // of a test that runs twice
	away := httptest.NewServer(nil)
	away.Close()
	mgr, err := ctrl.NewManager(&rest.Config{Host: away.URL}, options)
	if err != nil {
		t.Fatal(err)
	}
	a, tracker := s.make(mgr.GetClient())
	if err := errors.Join(tracker.Register(mgr), mgr.Add(a)); err != nil {
		t.Fatal(err)
	}
	s.run(mgr.Start)
	s.until("given back without an API server", 500, 500)
}
