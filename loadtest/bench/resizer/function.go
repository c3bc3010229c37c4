package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
)

// function runs in a container of the agent's node.
type function struct {
	redis, node, pod, name string
	seed                   uint64
	owed                   api.Resources
	work, waits            time.Duration // of a request, on average: CPU time, and other waiting
	dozes                  bool
}

// newFunction returns the command that becomes the process in a container. It is this program
// itself, so that no other is needed.
func newFunction() *cobra.Command {
	var f function
	cmd := &cobra.Command{
		Use:    "function",
		Short:  "Act as a function on the agent's node: for bench-resizer only",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.redis, "redis", "", "address of the pool")
	flags.StringVar(&f.node, "node", "", "name of the node")
	flags.StringVar(&f.pod, "pod", "", "namespace/name of the pod")
	flags.StringVar(&f.name, "function", "", "namespace/name of the Revision")
	flags.Uint64Var(&f.seed, "seed", 1, "random seed")
	flags.Int64Var(&f.owed.CPUMilli, "owed-cpu", 0, "user allocation, in milli CPU")
	flags.Int64Var(&f.owed.MemoryBytes, "owed-memory", 0, "user allocation, in bytes")
	flags.DurationVar(&f.work, "work", 0, "CPU time of a request, on average")
	flags.DurationVar(&f.waits, "waits", 0, "how long a request also waits, on average")
	flags.BoolVar(&f.dozes, "dozes", false, "wake now and then, without a request")
	return cmd
}

// run does nothing until it reads a line. Then it serves requests until its input ends, and prints
// how many it has served.
func (f function) run(in io.Reader, out io.Writer) error {
	if f.dozes {
		go func() {
			for {
				time.Sleep(50 * time.Millisecond)
			}
		}()
	}
	told := bufio.NewScanner(in)
	if !told.Scan() {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for told.Scan() {
		}
		stop()
	}()
	served, err := f.serve(ctx)
	fmt.Fprintln(out, served)
	return err
}

// serve keeps one request in flight all the time.
func (f function) serve(ctx context.Context) (served int, err error) {
	runtime.LockOSThread()
	pools := pool.NewRedis(redisconn.MustParse(f.redis))
	defer pools.Close() //nolint:errcheck // the process ends
	random := rand.New(rand.NewPCG(f.seed, 4))
	for ; ctx.Err() == nil; served++ {
		id := fmt.Sprint(f.pod, "-", served)
		cpu := time.Duration(random.ExpFloat64() * float64(f.work))
		waits := time.Duration(random.ExpFloat64() * float64(f.waits))
		begun := time.Now()
		_, err := pools.Begin(ctx, f.node, pool.Invocation{
			ID: id, Function: f.name, Pod: f.pod, Domain: "default", Owner: owner,
			Allocation: f.owed, Predicted: f.owed, Duration: cpu + waits, Ranked: true, CPUTime: cpu,
		})
		if err != nil && ctx.Err() == nil {
			return served, err
		}
		until := threadCPU() + cpu
		for threadCPU() < until {
		}
		rig.Pause(ctx, waits) //nolint:errcheck // then it ends sooner
		ending := pool.Ending{ID: id, Duration: time.Since(begun), Status: 200, BeginAnswered: true}
		if _, err := pools.End(ctx, f.node, ending); err != nil && ctx.Err() == nil {
			return served, err
		}
	}
	return served, nil
}

func threadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		fmt.Fprintln(os.Stderr, "read the clock of this thread's CPU time:", err)
		os.Exit(1)
	}
	return time.Duration(t.Nano())
}
