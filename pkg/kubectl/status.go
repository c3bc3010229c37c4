package kubectl

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
)

// statusDocument is what `status` prints as JSON and YAML.
type statusDocument struct {
	Namespaces []namespaceReport `json:"namespaces"`
	Parts      []partReadiness   `json:"parts"`
}

func newStatus(o *options) *cobra.Command {
	var scope scope
	var out output
	cmd := &cobra.Command{
		Use:     "status [SERVICE]",
		Short:   "Show what Libra does for each function, and whether its parts are ready",
		GroupID: groupSee,
		Long: `Show what Libra does for each function, and whether its parts are ready.

The figures are means over the last minutes, from the FunctionReport of each namespace, which the resizer writes every
ten seconds. COULD LEND is what requests were predicted not to use of their allocations, WOULD BORROW what they could have
used beyond them; LENT and BORROWED are what was really moved. SLOW-DOWN compares the time of requests with that of similar
ones while the function was only observed: under 100% is faster.`,
		Example: `  # functions in the namespace shop
  kubectl libra status -n shop
  # one function, with its revision
  kubectl libra status cart -n shop -o wide`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: o.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, kube, err := o.begin(scope, out)
			if err != nil {
				return err
			}
			var service string
			if len(args) > 0 {
				service = args[0]
			}
			d, err := status(cmd.Context(), kube, namespace, service, time.Now())
			if err != nil {
				return err
			}
			return out.print(o.Out, d)
		},
	}
	scope.addFlag(cmd)
	out.addFlag(cmd)
	return cmd
}

func status(ctx context.Context, kube client.Client, namespace, service string, now time.Time) (document, error) {
	reports, err := readReports(ctx, kube, namespace, now)
	if err != nil {
		return document{}, err
	}
	functions := functionsOf(reports, service)
	notes := reportNotes(reports, namespace)
	if service != "" && len(functions) == 0 && len(notes) == 0 {
		return document{}, fmt.Errorf("no function %q is reported in namespace %s: it had no request lately, or has not opted in; `kubectl libra explain %s` says which", service, namespace, service)
	}
	if service != "" {
		for i := range reports {
			reports[i].keep(service)
		}
	}
	table := newTable("namespace", "function", "+revision", "mode", "source", "learning", "top reason", "requests",
		"could lend", "would borrow", "lent", "borrowed", "safeguards", "slow-down")
	for _, f := range functions {
		slowdown := ""
		switch {
		case f.SlowdownPercent != nil:
			slowdown = fmt.Sprintf("%d%%", *f.SlowdownPercent)
		case f.Mode != string(api.ModeObserve):
			slowdown = "unknown"
		}
		addRow(table, f.Namespace, f.name(), f.Revision, f.Mode, f.Source, string(f.Learning), f.Reason, f.Requests,
			volume(f.CouldLend), volume(f.WouldBorrow), volume(f.Lent), volume(f.Borrowed), f.Safeguards, slowdown)
	}
	for _, n := range reports {
		if n.Report == nil || n.Problem != "" || service != "" {
			continue
		}
		note := fmt.Sprintf("Namespace %s: figures for the last %s, written %s ago", n.Namespace, duration.HumanDuration(n.Report.Window.Duration), duration.HumanDuration(now.Sub(n.Report.Updated.Time)))
		if others := int(n.Report.Total.Functions) - len(n.Report.Functions); others > 0 {
			note += fmt.Sprintf("; %d more functions are not listed", others)
		}
		if len(n.Report.Functions) == 0 {
			note += "; no function had a request"
		}
		notes = append(notes, note)
	}
	parts := readParts(ctx, kube)
	return document{
		kind:   "Status",
		data:   &statusDocument{Namespaces: orEmpty(reports), Parts: orEmpty(parts)},
		tables: []*metav1.Table{table, partsTable(parts)},
		notes:  notes,
	}, nil
}
