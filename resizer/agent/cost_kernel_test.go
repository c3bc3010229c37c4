package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"knative.dev/serving/pkg/apis/serving"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
	"libra.dev/libra/resizer/pressure"
)

// servingEnv makes a test binary a function, which serves requests as the variable says and
// tells the pool of them. The function is in a pod's cgroup, so that the test's own process
// is the agent and nothing else.
const servingEnv = "LIBRA_TEST_FUNCTION"

func init() {
	if os.Getenv(servingEnv) != "" {
		serveRequests()
		os.Exit(0)
	}
}

// serveRequests begins requests one after the other, until its standard input ends.
func serveRequests() {
	var addr, pod string
	var seed uint64
	var work, rest time.Duration
	if _, err := fmt.Sscan(os.Getenv(servingEnv), &addr, &pod, &seed, &work, &rest); err != nil {
		panic(err)
	}
	go func() {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // it ends
		os.Exit(0)
	}()
	runtime.LockOSThread()
	random := rand.New(rand.NewPCG(seed, 1))
	pools := pool.NewRedis(redisconn.MustParse(addr))
	ctx := context.Background()
	renewed := time.Time{}
	for n := 0; ; n++ {
		time.Sleep(time.Duration(random.ExpFloat64() * float64(rest)))
		if time.Since(renewed) > time.Second {
			renewed = time.Now()
			if err := pools.Renew(ctx, node, pod); err != nil {
				panic(err)
			}
		}
		id := fmt.Sprint(pod, "-", n)
		cpu := time.Duration(random.ExpFloat64() * float64(work))
		begun := time.Now()
		_, err := pools.Begin(ctx, node, pool.Invocation{
			ID: id, Function: "default/f-00001", Pod: pod, Domain: "default", Owner: pod,
			Allocation: userLimits, Predicted: userLimits, Duration: cpu, Ranked: true, CPUTime: cpu,
		})
		if err != nil {
			panic(err)
		}
		for until := threadCPU() + cpu; threadCPU() < until; {
		}
		if _, err := pools.End(ctx, node, pool.Ending{ID: id, Duration: time.Since(begun), Status: 200, BeginAnswered: true}); err != nil {
			panic(err)
		}
	}
}

func threadCPU() time.Duration { return cpuOfUsage(1) } // RUSAGE_THREAD

func cpuOfUsage(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// costSite is a node with functions, and bystanders that run now and then, in this machine's
// own cgroups.
type costSite struct {
	*testing.B
	addr  string
	pools *pool.Redis
	name  string
	made  []*cgrouptest.Container
}

const costBystanders = 10

func newCostSite(b *testing.B, functions int) *costSite {
	b.Helper()
	s := &costSite{B: b, addr: redistest.Start(b), name: cgrouptest.Name()}
	s.pools = pool.NewRedis(redisconn.MustParse(s.addr))
	b.Cleanup(func() { s.pools.Close() }) //nolint:errcheck // the benchmark ends
	for i := range functions {
		made := cgrouptest.NewIn(b, s.name, "kubepods", "burstable", fmt.Sprintf("pod%s-f%d", s.name, i), fmt.Sprintf("f%02d-%s", i, s.name))
		made.Write("100", made.PodFile("cpu.shares", "cpu.weight"))
		made.Write(map[bool]string{false: "180000", true: "180000 100000"}[made.V2], made.File("cpu.cfs_quota_us", "cpu.max"))
		s.made = append(s.made, made)
	}
	for i := range costBystanders {
		cgrouptest.NewIn(b, s.name, "kubepods", "burstable", fmt.Sprintf("pod%s-b%d", s.name, i), fmt.Sprintf("b%02d-%s", i, s.name)).Start(b).Do("doze")
	}
	return s
}

// isFunction reports whether a pod is anything but a bystander that the benchmark made.
func (s *costSite) isFunction(uid string) bool { return !strings.HasPrefix(uid, s.name+"-b") }

// agent runs an agent that knows the functions, until the benchmark ends.
func (s *costSite) agent() {
	s.Helper()
	options, err := ManagerOptions(node)
	if err != nil {
		s.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(options.Scheme).WithObjects(revisionOf(api.Resources{CPUMilli: userLimits.CPUMilli}), nodeOfTwo())
	for i, made := range s.made {
		p := podRunning(made.ID)
		p.Name = fmt.Sprintf("f%d", i)
		p.Labels = map[string]string{serving.RevisionLabelKey: "f-00001", serving.RevisionUID: "u1"}
		p.Spec.Containers[1].Resources = corev1.ResourceRequirements{Limits: api.Resources{CPUMilli: 1800, MemoryBytes: userLimits.MemoryBytes}.List()}
		builder = builder.WithObjects(p)
	}
	kube := builder.WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
		return errors.Join(c.Get(ctx, key, obj, opts...), withFields(obj, setByLibra("renamed", "cpu")))
	}}).Build()
	own := Settings{Node: node, CgroupRoot: s.made[0].Root, JournalDir: s.TempDir(), ProcRoot: "/proc", SampleLowered: 10 * time.Millisecond}
	a, tracker, err := New(clock.RealClock{}, kube, kube, &fixedLending{mode: api.ModeFull, source: api.SourceNode}, own,
		Redis{Pool: s.pools, Watcher: s.pools.Watch(node), Observer: s.pools},
		sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())), tracenoop.NewTracerProvider())
	if err != nil {
		s.Fatal(err)
	}
	waiting := pressure.New(own.CgroupRoot, own.ProcRoot, s.isFunction)
	s.Cleanup(waiting.Close)
	a.reflex.clamps.waits = waiting
	for i := range s.made {
		name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("f%d", i)}
		if _, err := tracker.Reconcile(s.Context(), reconcile.Request{NamespacedName: name}); err != nil {
			s.Fatal(err)
		}
	}
	runPart(s.B, a.Start)
}

// serve has function i serve requests until the benchmark ends: on average of work CPU time
// each, and rest apart.
func (s *costSite) serve(i int, work, rest time.Duration) {
	s.Helper()
	self, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s default/f%d %d %d %d", servingEnv, s.addr, i, i, work, rest), "GOMAXPROCS=2")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		stdin.Close() //nolint:errcheck // it ends by that
		cmd.Wait()    //nolint:errcheck // it has ended
	})
	s.made[i].Add(cmd.Process.Pid)
}

// BenchmarkKernelAgent measures the CPU that a whole agent takes, without what the cluster
// tells it: with pods at rest, and with requests of 40 ms on average in some of them, which
// take the given share of two cores. One iteration is a second.
func BenchmarkKernelAgent(b *testing.B) {
	for _, bb := range []struct {
		name       string
		pods, busy int
		share      float64 // of two cores
	}{
		{name: "at-rest-10", pods: 10},
		{name: "at-rest-40", pods: 40},
		{name: "40-percent-10-of-40", pods: 40, busy: 10, share: 0.4},
		{name: "90-percent-10", pods: 10, busy: 10, share: 0.9},
		{name: "90-percent-40", pods: 40, busy: 40, share: 0.9},
	} {
		b.Run(bb.name, func(b *testing.B) {
			s := newCostSite(b, bb.pods)
			s.agent()
			const work = 40 * time.Millisecond
			for i := range bb.busy {
				each := time.Duration(float64(work) * float64(bb.busy) / (2 * bb.share)) // from one Begin to the next
				s.serve(i, work, each-work)
			}
			time.Sleep(sleepTime + 2*time.Second)
			before, at := cpuOfUsage(syscall.RUSAGE_SELF), time.Now()
			var heap, heapAfter runtime.MemStats
			runtime.ReadMemStats(&heap)
			for b.Loop() {
				time.Sleep(time.Second)
			}
			took := time.Since(at)
			used := cpuOfUsage(syscall.RUSAGE_SELF) - before
			runtime.ReadMemStats(&heapAfter)
			b.ReportMetric(100*used.Seconds()/took.Seconds(), "%core")
			b.ReportMetric(float64(heapAfter.TotalAlloc-heap.TotalAlloc)/took.Seconds()/1024, "KiB/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
