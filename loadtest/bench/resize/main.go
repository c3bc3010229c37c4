// Command resize measures how long it takes from the intent to change a CPU limit
// until the kernel has it: through the API, and through the pool and the node agent.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
)

const (
	// pollEvery bounds how late a change is seen.
	pollEvery      = 100 * time.Microsecond
	changeTimeout  = 15 * time.Second
	cleanUpTimeout = 2 * time.Minute
	// loanMilli is the CPU that one pod lends to the other.
	loanMilli = 400
	// settle is longer than the agent needs to carry out the end of a loan.
	settle = 50 * time.Millisecond
)

// Names of the functions. The first did not opt in, so that only this command
// changes its limits.
const (
	alone    = "bench-resize"
	donor    = "bench-donor"
	borrower = "bench-borrower"
)

var limits = api.Resources{CPUMilli: 600, MemoryBytes: 64 << 20}

// repetitions says how often each way is measured.
type repetitions struct {
	spaced     int           // patches, each long after the previous one
	spacing    time.Duration // between these
	backToBack int           // patches, each as soon as the previous one is seen
	loans      int
	writes     int // to the cgroup alone
}

var (
	full  = repetitions{spaced: 60, spacing: 3 * time.Second, backToBack: 60, loans: 400, writes: 400}
	quick = repetitions{spaced: 3, spacing: time.Second, backToBack: 3, loans: 20, writes: 20}
)

func main() { machine.Main(newRoot()) }

func newRoot() *cobra.Command {
	var o rig.Options
	cmd := &cobra.Command{
		Use:   "bench-resize",
		Short: "Measure how long each way to change a CPU limit takes, on the box",
		Long: `bench-resize changes CPU limits of real pods on the box and watches their cgroups:
by patching pods/resize, both long after a pod's last change and right after it; by
a loan in the pool, which the node agent carries out; and by writing the cgroup.

Libra must be on the box: "demo install".`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	o.Bind(cmd, "out/bench-resize")
	return cmd
}

// resizing is one run of the command.
type resizing struct {
	*rig.Rig
	lender *rig.Lender
	random *rand.Rand
	pods   map[string]rig.Pod   // by function
	times  map[string][]float64 // milliseconds
	// refused counts loans that the node had no room for.
	refused int
}

func bench(ctx context.Context, o rig.Options, out io.Writer) (err error) {
	n := full
	if o.Quick {
		n = quick
	}
	r, err := rig.Connect(ctx, o, out)
	if err != nil {
		return err
	}
	z := &resizing{Rig: r, random: rand.New(rand.NewPCG(o.Seed, 0)), pods: map[string]rig.Pod{}, times: map[string][]float64{}}
	defer func() { err = errors.Join(err, z.cleanUp(context.WithoutCancel(ctx))) }()
	for _, name := range []string{alone, donor, borrower} {
		d, err := z.Deploy(ctx, rig.Function{Name: name, OptedIn: name != alone, Pods: 1, Limits: limits})
		if err != nil {
			return err
		}
		z.pods[name] = d.Pods[0]
	}
	if z.lender, err = r.NewLender(ctx); err != nil {
		return err
	}

	z.Say("api: %d patches, %v apart", n.spaced, n.spacing)
	for range n.spaced {
		if err := rig.Pause(ctx, n.spacing); err != nil {
			return err
		}
		if err := z.patch(ctx, "api"); err != nil {
			return err
		}
	}
	z.Say("api: %d patches back to back", n.backToBack)
	for range n.backToBack {
		if err := z.patch(ctx, "api_back_to_back"); err != nil {
			return err
		}
	}
	z.Say("cgroup: %d writes", n.writes)
	for range n.writes {
		if err := z.write(); err != nil {
			return err
		}
	}
	z.Say("cgroup: %d loans", n.loans)
	for range n.loans {
		if err := z.lend(ctx); err != nil {
			return err
		}
	}
	return z.report(ctx, out)
}

// note records how long one change took.
func (z *resizing) note(name string, took time.Duration) {
	z.times[name] = append(z.times[name], rig.Milliseconds(took))
}

// other returns a CPU limit other than the current one of the pod of alone.
func (z *resizing) other() (int64, error) {
	now, err := z.pods[alone].CPULimit()
	if err != nil {
		return 0, err
	}
	// Whole tens, which Kubernetes and the kernel represent alike.
	to := limits.CPUMilli - 10*(1+z.random.Int64N(20))
	if to == now {
		to = limits.CPUMilli
	}
	return to, nil
}

// patch resizes through the API.
func (z *resizing) patch(ctx context.Context, name string) error {
	to, err := z.other()
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":{"containers":[{"name":%q,"resources":{"limits":{"cpu":"%dm"}}}]}}`, api.UserContainer, to)
	began := time.Now()
	if _, err := z.Kube.CoreV1().Pods(rig.Namespace).Patch(ctx, z.pods[alone].Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "resize"); err != nil {
		return fmt.Errorf("resize pod %s: %w", z.pods[alone].Name, err)
	}
	seen, err := rig.AwaitCPULimit(ctx, z.pods[alone], pollEvery, changeTimeout, isLimit(to))
	if err != nil {
		return err
	}
	z.note(name, seen.Sub(began))
	return nil
}

// write sets the limit in the kernel, and tells nobody.
func (z *resizing) write() error {
	to, err := z.other()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := z.pods[alone].Container.SetCPU(to); err != nil {
		return fmt.Errorf("set the CPU limit of pod %s: %w", z.pods[alone].Name, err)
	}
	now, err := z.pods[alone].CPULimit()
	if err != nil {
		return err
	}
	z.note("write", time.Since(began))
	if now != to {
		return fmt.Errorf("the CPU limit of pod %s was set to %dm, but is %dm", z.pods[alone].Name, to, now)
	}
	return nil
}

// lend makes a loan and ends it. The intent to change limits is the Begin of the
// borrower: before it, the donor's surplus is in the pool and changes nothing.
func (z *resizing) lend(ctx context.Context) error {
	gives, takes := z.pods[donor], z.pods[borrower]
	if err := rig.AwaitWhole(ctx, gives, takes); err != nil {
		return err
	}
	// Vary the distance from the agent's rounds.
	if err := rig.Pause(ctx, settle+time.Duration(z.random.Int64N(int64(settle)))); err != nil {
		return err
	}
	loan, refused, err := z.lender.Loan(ctx, gives, takes, api.Resources{CPUMilli: loanMilli}, loanMilli)
	if err != nil {
		return err
	}
	z.refused += refused
	lowered, err := rig.AwaitCPULimit(ctx, gives, pollEvery, changeTimeout, isLimit(limits.CPUMilli-loanMilli))
	if err != nil {
		return fmt.Errorf("after a loan of %dm: %w", loanMilli, err)
	}
	raised, err := rig.AwaitCPULimit(ctx, takes, pollEvery, changeTimeout, isLimit(limits.CPUMilli+loanMilli))
	if err != nil {
		return fmt.Errorf("after a loan of %dm: %w", loanMilli, err)
	}
	z.note("cgroup_lower", lowered.Sub(loan.Asked))
	z.note("cgroup", raised.Sub(loan.Asked))
	return z.lender.End(ctx, loan.Borrower, loan.Donor)
}

func isLimit(want int64) func(milli int64) bool {
	return func(milli int64) bool { return milli == want }
}

func (z *resizing) report(ctx context.Context, out io.Writer) error {
	metrics := map[string]float64{"loans_refused": float64(z.refused)}
	for name, times := range z.times {
		metrics[name+"_count"] = float64(len(times))
		for percent, suffix := range map[float64]string{50: "_p50_ms", 95: "_p95_ms", 99: "_p99_ms", 100: "_worst_ms"} {
			metrics[name+suffix] = report.Percentile(times, percent)
		}
	}
	if err := z.Write(ctx, metrics); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%-34s %6s %10s %10s %10s %10s\n", "intent to CPU limit in the kernel", "times", "P50 ms", "P95 ms", "P99 ms", "worst ms")
	for _, row := range []struct{ name, what string }{
		{"api", "API, long after the last change"},
		{"api_back_to_back", "API, right after the last change"},
		{"cgroup_lower", "pool and agent, donor lowered"},
		{"cgroup", "pool and agent, borrower raised"},
		{"write", "write and read of the cgroup alone"},
	} {
		fmt.Fprintf(out, "%-34s %6.0f %10.3f %10.3f %10.3f %10.3f\n", row.what, metrics[row.name+"_count"],
			metrics[row.name+"_p50_ms"], metrics[row.name+"_p95_ms"], metrics[row.name+"_p99_ms"], metrics[row.name+"_worst_ms"])
	}
	return nil
}

func (z *resizing) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	z.Say("removing the functions")
	var errs []error
	if z.lender != nil {
		errs = append(errs, z.lender.Close())
	}
	for _, p := range z.pods {
		p.Container.Close() //nolint:errcheck // the pod goes
	}
	for _, name := range []string{alone, donor, borrower} {
		errs = append(errs, z.Remove(ctx, name))
	}
	return errors.Join(errs...)
}
