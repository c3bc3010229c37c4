package kubectl

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// documentVersion is the apiVersion of what commands print as JSON and YAML.
const documentVersion = "kubectl.libra.dev/v1alpha1"

const (
	outputTable = "table"
	outputWide  = "wide"
)

var outputs = []string{outputTable, outputWide, "json", "yaml"}

// output is how a command prints what it found.
type output struct{ format string }

func (f *output) addFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.format, "output", "o", outputTable, "one of "+strings.Join(outputs, ", "))
	complete(cmd, "output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
}

func (f *output) check() error {
	if !slices.Contains(outputs, f.format) {
		return fmt.Errorf("--output is %q, want one of %s", f.format, strings.Join(outputs, ", "))
	}
	return nil
}

// document is what a command found: the data for programs, and tables with sentences below for people.
type document struct {
	kind   string
	data   any // a pointer to a struct
	tables []*metav1.Table
	notes  []string
}

func (f *output) print(w io.Writer, d document) error {
	switch f.format {
	case outputTable, outputWide:
		return f.printTables(w, d)
	}
	printer, err := genericclioptions.NewJSONYamlPrintFlags().ToPrinter(f.format)
	if err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d.data)
	if err != nil {
		return fmt.Errorf("printing %s: %w", d.kind, err)
	}
	object := &unstructured.Unstructured{Object: fields}
	object.SetAPIVersion(documentVersion)
	object.SetKind(d.kind)
	return printer.PrintObj(object, w)
}

func (f *output) printTables(w io.Writer, d document) error {
	printed := false
	for _, table := range d.tables {
		if len(table.Rows) == 0 {
			continue
		}
		if printed {
			fmt.Fprintln(w)
		}
		printed = true
		// A printer omits the headers of a table that is like its last one, so each table has its own.
		printer := printers.NewTablePrinter(printers.PrintOptions{Wide: f.format == outputWide})
		if err := printer.PrintObj(table, w); err != nil {
			return err
		}
	}
	for i, note := range d.notes {
		if i == 0 && printed {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, note)
	}
	return nil
}

// newTable returns a table with the columns. Those that begin with a + are only for -o wide.
func newTable(columns ...string) *metav1.Table {
	table := &metav1.Table{}
	for _, name := range columns {
		name, wide := strings.CutPrefix(name, "+")
		column := metav1.TableColumnDefinition{Name: name, Type: "string"}
		if wide {
			column.Priority = 1
		}
		table.ColumnDefinitions = append(table.ColumnDefinitions, column)
	}
	return table
}

// addRow adds a row, with a dash for each empty cell.
func addRow(table *metav1.Table, cells ...any) {
	for i, cell := range cells {
		if s := fmt.Sprint(cell); s == "" {
			cells[i] = "-"
		}
	}
	table.Rows = append(table.Rows, metav1.TableRow{Cells: cells})
}

// orEmpty returns a list that prints as [] when it is empty.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
