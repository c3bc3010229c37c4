package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
)

const (
	leastInterval   = 2 * time.Second
	defaultInterval = 10 * time.Second // as often as there is something new
	defaultWatch    = 10 * time.Minute
	longestWatch    = 24 * time.Hour
)

// topDocument is what `top` prints as JSON and YAML.
type topDocument struct {
	Functions []reported `json:"functions"`
}

type topFlags struct {
	scope
	output
	watch            bool
	interval, period time.Duration
}

func newTop(o *options) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:     "top",
		Short:   "Show functions by what they borrow and lend now",
		GroupID: groupSee,
		Long: `Show functions by what they borrow and lend now, the most first. The figures are those that the resizer wrote last, as
in kubectl libra status.`,
		Example: `  # in all namespaces
  kubectl libra top -A
  # in the namespace shop, every ten seconds for half an hour
  kubectl libra top -n shop --watch --for 30m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			namespace, kube, err := o.begin(f.scope, f.output)
			if err != nil {
				return err
			}
			return o.top(cmd.Context(), f, kube, namespace)
		},
	}
	f.scope.addFlag(cmd)
	f.output.addFlag(cmd)
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "print repeatedly, until --for has passed")
	cmd.Flags().DurationVar(&f.interval, "interval", defaultInterval, fmt.Sprintf("with --watch, how often to print, from %v", leastInterval))
	cmd.Flags().DurationVar(&f.period, "for", defaultWatch, fmt.Sprintf("with --watch, how long to print, up to %v", longestWatch))
	return cmd
}

func (f *topFlags) check() error {
	if f.interval < leastInterval {
		return fmt.Errorf("--interval is %v, want %v or more: the figures are written every %v", f.interval, leastInterval, defaultInterval)
	}
	if f.period <= 0 || f.period > longestWatch {
		return fmt.Errorf("--for is %v, want more than 0s and up to %v", f.period, longestWatch)
	}
	return nil
}

func (o *options) top(ctx context.Context, f topFlags, kube client.Client, namespace string) error {
	ends := time.After(f.period)
	ticks := time.NewTicker(f.interval)
	defer ticks.Stop()
	for again := false; ; again = true {
		d, err := top(ctx, kube, namespace, time.Now())
		if ctx.Err() != nil && again {
			return nil // the user has seen enough
		}
		if err != nil {
			return err
		}
		if again && f.format != "json" {
			if err := o.printBetween(f.output, time.Now()); err != nil {
				return err
			}
		}
		if err := f.print(o.Out, d); err != nil || !f.watch {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ends: // a read that began before is still printed
			return nil
		case <-ticks.C:
		}
	}
}

// printBetween separates one print of many from the next.
func (o *options) printBetween(f output, now time.Time) error {
	if f.format == "yaml" {
		_, err := fmt.Fprintln(o.Out, "---")
		return err
	}
	_, err := fmt.Fprintf(o.Out, "\n%s\n", now.Format(time.TimeOnly))
	return err
}

func top(ctx context.Context, kube client.Client, namespace string, now time.Time) (document, error) {
	reports, err := readReports(ctx, kube, namespace, now)
	if err != nil {
		return document{}, err
	}
	functions := functionsOf(reports, "")
	slices.SortStableFunc(functions, func(a, b reported) int {
		return cmp.Or(compareMoved(b, a), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.name(), b.name()))
	})
	table := newTable("namespace", "function", "+revision", "mode", "borrowed cores", "borrowed mib", "lent cores", "lent mib", "requests", "safeguards")
	for _, f := range functions {
		borrowed, lent := api.FromList(f.Borrowed), api.FromList(f.Lent)
		addRow(table, f.Namespace, f.name(), f.Revision, f.Mode, cores(borrowed.CPUMilli), mebibytes(borrowed.MemoryBytes),
			cores(lent.CPUMilli), mebibytes(lent.MemoryBytes), f.Requests, f.Safeguards)
	}
	return document{kind: "Top", data: &topDocument{Functions: orEmpty(functions)}, tables: []*metav1.Table{table}, notes: reportNotes(reports, namespace)}, nil
}

// compareMoved compares what two functions borrow and lend: CPU before memory.
func compareMoved(a, b reported) int {
	moved := func(f reported) api.Resources { return api.FromList(f.Borrowed).Add(api.FromList(f.Lent)) }
	return cmp.Or(cmp.Compare(moved(a).CPUMilli, moved(b).CPUMilli), cmp.Compare(moved(a).MemoryBytes, moved(b).MemoryBytes))
}
