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
	"libra.dev/libra/pkg/api/v1alpha1"
)

// saving is what a function does not use of its own, and what it could use beyond that.
type saving struct {
	Namespace string `json:"namespace,omitempty"`
	Function  string `json:"function,omitempty"`
	Mode      string `json:"mode,omitempty"`
	Source    string `json:"source,omitempty"`
	Requests  int64  `json:"requests"`

	UnusedMilliCores int64 `json:"unusedMilliCores"`
	UnusedBytes      int64 `json:"unusedBytes"`
	WantedMilliCores int64 `json:"wantedMilliCores"`
	WantedBytes      int64 `json:"wantedBytes"`
}

// savingsDocument is what `savings` prints as JSON and YAML.
type savingsDocument struct {
	Functions []saving `json:"functions"`
	// Total includes functions that are not listed.
	Total saving `json:"total"`
}

func newSavings(o *options) *cobra.Command {
	var scope scope
	var out output
	cmd := &cobra.Command{
		Use:     "savings",
		Short:   "Show what functions do not use, and what others could use",
		GroupID: groupSee,
		Long: `Show what functions do not use of what their owners configured, and what their requests could use beyond it, in cores
and MiB, averaged over the last minutes. In the mode observe none of it is lent: the figures show the possible gain.`,
		Example: `  # in the namespace shop
  kubectl libra savings -n shop
  # in the whole cluster, for a spreadsheet
  kubectl libra savings -A -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			namespace, kube, err := o.begin(scope, out)
			if err != nil {
				return err
			}
			d, err := savings(cmd.Context(), kube, namespace, time.Now())
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

func savings(ctx context.Context, kube client.Client, namespace string, now time.Time) (document, error) {
	reports, err := readReports(ctx, kube, namespace, now)
	if err != nil {
		return document{}, err
	}
	found := &savingsDocument{Functions: []saving{}}
	for _, f := range functionsOf(reports, "") {
		s := savingOf(f.FunctionFigures)
		s.Namespace, s.Function, s.Mode, s.Source = f.Namespace, f.name(), f.Mode, f.Source
		found.Functions = append(found.Functions, s)
	}
	slices.SortStableFunc(found.Functions, func(a, b saving) int {
		return cmp.Or(cmp.Compare(b.UnusedMilliCores, a.UnusedMilliCores), cmp.Compare(b.UnusedBytes, a.UnusedBytes),
			cmp.Compare(b.WantedMilliCores, a.WantedMilliCores), cmp.Compare(a.Function, b.Function))
	})
	for _, n := range reports {
		if n.Report != nil {
			found.Total.add(savingOf(n.Report.Total.FunctionFigures))
		}
	}
	table := newTable("namespace", "function", "mode", "requests", "unused cores", "unused mib", "wanted cores", "wanted mib")
	for _, s := range found.Functions {
		s.addTo(table)
	}
	if len(found.Functions) > 0 {
		total := found.Total
		total.Function = "TOTAL"
		total.addTo(table)
	}
	return document{kind: "Savings", data: found, tables: []*metav1.Table{table}, notes: append(reportNotes(reports, namespace), found.pitch()...)}, nil
}

func savingOf(f v1alpha1.FunctionFigures) saving {
	unused, wanted := api.FromList(f.CouldLend), api.FromList(f.WouldBorrow)
	return saving{
		Requests:         f.Requests,
		UnusedMilliCores: unused.CPUMilli, UnusedBytes: unused.MemoryBytes,
		WantedMilliCores: wanted.CPUMilli, WantedBytes: wanted.MemoryBytes,
	}
}

func (s *saving) add(o saving) {
	s.Requests += o.Requests
	s.UnusedMilliCores += o.UnusedMilliCores
	s.UnusedBytes += o.UnusedBytes
	s.WantedMilliCores += o.WantedMilliCores
	s.WantedBytes += o.WantedBytes
}

func (s saving) addTo(table *metav1.Table) {
	addRow(table, s.Namespace, s.Function, s.Mode, s.Requests, cores(s.UnusedMilliCores), mebibytes(s.UnusedBytes), cores(s.WantedMilliCores), mebibytes(s.WantedBytes))
}

// pitch says what there is to gain from the functions that are only observed.
func (d *savingsDocument) pitch() (notes []string) {
	var owners, node saving
	for _, s := range d.Functions {
		switch {
		case s.Mode != string(api.ModeObserve):
		case s.Source == string(api.SourceOwners):
			owners.add(s)
		default:
			node.add(s)
		}
	}
	if owners.UnusedMilliCores > 0 || owners.WantedMilliCores > 0 {
		notes = append(notes, fmt.Sprintf("In the mode observe nothing is lent: under the source owners, %s cores that functions do not use could be lent, and %s cores more could be used. To start, run `kubectl libra mode SERVICE lend`, and later `full`",
			cores(owners.UnusedMilliCores), cores(owners.WantedMilliCores)))
	}
	if node.WantedMilliCores > 0 {
		notes = append(notes, fmt.Sprintf("In the mode observe no function goes beyond its limit: under the source node, functions could use %s cores beyond theirs, of what their nodes have idle. To let one, run `kubectl libra mode SERVICE full`",
			cores(node.WantedMilliCores)))
	}
	return notes
}

func cores(milli int64) string { return fmt.Sprintf("%.2f", float64(milli)/1000) }

func mebibytes(bytes int64) string { return fmt.Sprintf("%d", bytes>>20) }
