package evaluation

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"libra.dev/libra/loadtest/demo/report"
)

// MarkdownFile is the name of the report without plots.
const MarkdownFile = "report.md"

// What would end a cell of Markdown, or the line.
var cell = strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;")

// WriteMarkdown writes the report without its plots.
func WriteMarkdown(dir string, h Heading, d Data, c Comparison) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# %s\n\nThe plots are in %s.\n", h.Title, PageFile)
	line := func(cells []string) {
		for _, text := range cells {
			fmt.Fprintf(&out, "| %s ", cell.Replace(text))
		}
		fmt.Fprintln(&out, "|")
	}
	for _, s := range document(d, c) {
		fmt.Fprintf(&out, "\n## %s\n", s.Title)
		for _, text := range s.Text {
			fmt.Fprintf(&out, "\n%s\n", text)
		}
		for _, t := range s.Tables {
			if len(t.Rows) == 0 {
				continue
			}
			if t.Caption != "" {
				fmt.Fprintf(&out, "\n%s:\n", t.Caption)
			}
			fmt.Fprintln(&out)
			line(t.Head)
			fmt.Fprintln(&out, strings.Repeat("|---", len(t.Head))+"|")
			for _, row := range t.Rows {
				line(row)
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, MarkdownFile), out.Bytes(), 0o644)
}

// WriteTable writes the short of it as text.
func WriteTable(w io.Writer, d Data, c Comparison) error {
	fmt.Fprintf(w, "Against stock, of %d rounds (seed %d): P50 and P99 of the response times, slow-down of harvested pairs.\n\n", c.Rounds, d.Seed)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\tpolicy\tP50\tP99\tleast\tmost\tpaper\tslow-down P99\tworst\tpaper\tCPU\tmemory\tcompletion\t")
	for _, v := range c.Versus {
		p99, _, _ := paperCells(paperP99, v, report.Ratio)
		worst, _, _ := paperCells(paperWorst, v, change)
		fmt.Fprintln(t, strings.Join([]string{
			v.Workload, d.title(v.Policy), report.Ratio(v.P50.Median), report.Ratio(v.P99.Median), report.Ratio(v.P99.Least), report.Ratio(v.P99.Most), p99,
			change(v.SlowdownP99), change(v.SlowdownWorst), worst,
			report.Ratio(v.InFlight.CPU), report.Ratio(v.InFlight.Memory), report.Ratio(v.Completion.Median),
		}, "\t")+"\t")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nFailed requests: %d. Late: %d.\n", len(c.Failures), c.Late)
	for i, f := range c.Failures {
		if i == maxFailuresListed {
			break
		}
		fmt.Fprintf(w, "Failed: %s, %s, round %d, request %d to %s: %s\n", d.title(f.Policy), f.Workload, f.Round, f.N, f.Function, f.Error)
	}
	for _, finding := range c.Findings {
		fmt.Fprintf(w, "Does not hold: %s\n", finding)
	}
	return err
}
