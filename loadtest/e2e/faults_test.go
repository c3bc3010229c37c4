//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/cgroup"
)

const (
	// boxNode is the only node or, of several, the control node.
	boxNode       = "box"
	agentSelector = "app=libra-agent"
	cgroupRoot    = "/sys/fs/cgroup"
	// queueProxyPort is where a pod takes requests.
	queueProxyPort = "8012"
)

// repeatedly calls do until it is stopped. stop fails the test if do never succeeded.
func repeatedly(ctx context.Context, t *testing.T, what string, do func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	var worked int
	var last error
	done.Go(func() {
		for ctx.Err() == nil {
			if err := do(ctx); err != nil {
				last = err
				<-time.After(20 * time.Millisecond)
			} else {
				worked++
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
		if worked == 0 {
			t.Errorf("%s never worked: %v", what, last)
		}
	}
}

// breakJournal keeps the node agent from writing its journal for a function's container, under load that makes
// it try.
func breakJournal(ctx context.Context, t *testing.T) (mend func()) {
	agent := findCgroups(t, container(ctx, t, agentSelector))
	processes, err := agent.Processes()
	if err != nil || len(processes) == 0 {
		t.Fatalf("processes of the agent: %v, %v", processes, err)
	}
	borrower := find(ctx, t, "compression")
	// A folder with the name of the file that the agent writes first.
	inTheWay := filepath.Join("/proc", fmt.Sprint(processes[0].Pid), "root/run/libra-agent", borrower.containerID+".json.new")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	running := startLoad(ctx)
	return func() {
		running.stop(t)
		if err := os.Remove(inTheWay); err != nil {
			t.Error(err)
		}
	}
}

// managedFor is how long another manager keeps writing a container's limit before it lets the agent lend
// again. The agent leaves a container alone that another changed while it lent nothing, so that it would not
// contest a manager that came at such a moment.
const managedFor = 20 * time.Second

// anotherManager keeps writing the CPU limit of a function under load, as hundredths of what it is owed. One that is
// raised is a donor, and one that is lowered is a borrower: what is written is then never what the loans allow.
func anotherManager(name string, hundredths int64) func(ctx context.Context, t *testing.T) (mend func()) {
	return func(ctx context.Context, t *testing.T) (mend func()) {
		f := find(ctx, t, name)
		c, err := cgroup.Open(cgroupRoot, f.containerID)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(c.SetCPU(f.allocation.CPUMilli), c.Close()); err != nil {
				t.Errorf("give %s its limit back: %v", f.name, err)
			}
		})
		running := startLoad(ctx)
		stop := repeatedly(ctx, t, "a write of the limit of "+f.name, func(ctx context.Context) error {
			reading, err := c.Read()
			if err != nil {
				return err
			}
			owed, limit := f.allocation.CPUMilli, reading.Limit.CPUMilli
			if hundredths > 100 && limit >= owed || hundredths < 100 && limit <= owed {
				return fmt.Errorf("its limit is %dm, and it is owed %dm", limit, owed)
			}
			for end := time.Now().Add(managedFor); time.Now().Before(end) && ctx.Err() == nil; {
				// The agent comes every 10 ms, and reads back what it has written within microseconds.
				<-time.After(100 * time.Microsecond)
				if err := c.SetCPU(owed * hundredths / 100); err != nil {
					return err
				}
			}
			return c.SetCPU(owed)
		})
		return func() {
			stop()
			running.stop(t)
		}
	}
}

// predictWrongly keeps lending what a pod is using, each time for another function: one that the safeguard has
// caught is suspended.
func predictWrongly(ctx context.Context, t *testing.T) (mend func()) {
	lends, borrows := find(ctx, t, "compression"), find(ctx, t, "uploader")
	pools := pool.NewRedis(redisServer)
	pod, err := kube.CoreV1().Pods(functionsNamespace).Get(ctx, lends.pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Past the activator, which would begin them in the pool.
	requests := repeatedly(ctx, t, "a request to "+lends.pod, func(ctx context.Context) error {
		// A request that has begun runs to its end: the test may be over before the first has ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+pod.Status.PodIP+":"+queueProxyPort, bytes.NewReader(compressionBody))
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return errors.Join(err, expectOK(response))
	})
	half := api.Resources{CPUMilli: lends.allocation.CPUMilli / 2}
	suspended := func(s pool.State, function string) bool {
		return slices.ContainsFunc(s.Suspended, func(s pool.Suspension) bool { return s.Function == function })
	}
	n := 0
	loans := repeatedly(ctx, t, "a loan of what is in use", func(ctx context.Context) error {
		n++
		name := fmt.Sprintf("%s/wrong-%d", functionsNamespace, n)
		begin := func(of function, surplus, want api.Resources) (string, error) {
			inv := pool.Invocation{
				ID: fmt.Sprintf("wrong-%s-%d", of.name, n), Function: name,
				Pod: functionsNamespace + "/" + of.pod, Domain: "wrong", Owner: "wrong", Size: api.UnknownSize,
				Allocation: of.allocation, Duration: time.Minute, Surplus: surplus, Want: want,
			}
			_, err := pools.Begin(ctx, lends.node, inv)
			return inv.ID, err
		}
		donor, err := begin(lends, half, api.Resources{})
		if err != nil {
			return err
		}
		borrower, err := begin(borrows, api.Resources{}, half)
		var state pool.State
		for deadline := time.Now().Add(2 * time.Second); err == nil && !suspended(state, name) && time.Now().Before(deadline); {
			<-time.After(20 * time.Millisecond)
			state, err = pools.Read(ctx, lends.node)
		}
		if err == nil && !suspended(state, name) {
			err = errors.New("the safeguard did not fire")
		}
		for _, id := range []string{borrower, donor} {
			_, endErr := pools.End(context.WithoutCancel(ctx), lends.node, pool.Ending{ID: id, Late: true})
			err = errors.Join(err, endErr)
		}
		return err
	})
	return func() {
		loans()
		requests()
		if err := pools.Close(); err != nil {
			t.Error(err)
		}
	}
}

func expectOK(response *http.Response) error {
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// stopAgent stops the node agent's processes.
func stopAgent(ctx context.Context, t *testing.T) (mend func()) {
	id := container(ctx, t, agentSelector)
	signal(t, id, syscall.SIGSTOP)
	return func() { signal(t, id, syscall.SIGCONT) }
}

// withoutRedis stops Redis.
func withoutRedis(ctx context.Context, t *testing.T) (mend func()) {
	scale(ctx, t, "redis", 0)
	return func() { scale(ctx, t, "redis", 1) }
}
