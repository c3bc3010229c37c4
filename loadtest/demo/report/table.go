package report

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// maxFailuresListed keeps a run that went wrong readable.
const maxFailuresListed = 5

// WriteTable writes the comparison as text.
func WriteTable(w io.Writer, d Data, c Comparison) error {
	fmt.Fprintf(w, "Response times in ms; the same %d requests (seed %d) in each run. \"again\" is a second run of stock: the noise.\n\n",
		c.Overall.Requests+c.Plain.Requests, d.Seed)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\t\tfailed\t\tP50\t\t\t\tP99\t\t\t\tworst\t\t\tshare\tshare\tresizes\t")
	fmt.Fprintln(t, "function\trequests\tstock\tLibra\tstock\tLibra\tratio\tagain\tstock\tLibra\tratio\tagain\tstock\tLibra\tratio\tharvested\taccelerated\trecorded\t")
	for _, r := range append(append([]Row(nil), c.Functions...), c.Overall) {
		writeRow(t, r, percent(share(r.Harvested, r.Requests)), percent(share(r.Accelerated, r.Requests)))
	}
	writeRow(t, c.Plain, "-", "-")
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s did not opt in to Libra. P99 is the nearest rank: of fewer than 100 requests, the worst.\n", c.Plain.Name)
	fmt.Fprintf(w, "Worst slow-down of a harvested request, against stock: %s.\n", c.Slowdown)
	fmt.Fprintf(w, "Of the same requests in the second run of stock, which is noise: %s.\n", c.SlowdownAgain)
	fmt.Fprintln(w, "Harvested is here, unlike in the share, also a request that found the limits of its function's pod lowered.")
	fmt.Fprintf(w, "Limits written to cgroups by the node agents: %d; recorded are those that stood for a second.\n", d.Writes)
	if c.Overall.Observed < c.Overall.Requests {
		fmt.Fprintf(w, "Of %d requests with Libra, %d are on record; the others count as neither harvested nor accelerated.\n", c.Overall.Requests, c.Overall.Observed)
	}
	if c.Late > 0 {
		fmt.Fprintf(w, "%d requests were sent more than %d ms late.\n", c.Late, LateMS)
	}
	if c.StockResizes > 0 {
		fmt.Fprintf(w, "Limits changed %d times in the runs of stock: these are not stock.\n", c.StockResizes)
	}
	if d.Restarts > 0 {
		fmt.Fprintf(w, "Containers restarted: %d.\n", d.Restarts)
	}
	for i, f := range c.Failures {
		if i == maxFailuresListed {
			fmt.Fprintf(w, "And %d more failures.\n", len(c.Failures)-i)
			break
		}
		fmt.Fprintf(w, "Failed in run %s, request %d to %s: %s\n", f.Run, f.N, f.Function, f.Error)
	}
	return nil
}

func writeRow(w io.Writer, r Row, harvested, accelerated string) {
	libra, again := r.Libra.Over(r.Stock), r.Again.Over(r.Stock)
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t", r.Name, r.Requests, r.FailedStock, r.FailedLibra)
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t", MS(r.Stock.P50), MS(r.Libra.P50), Ratio(libra.P50), Ratio(again.P50))
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t", MS(r.Stock.P99), MS(r.Libra.P99), Ratio(libra.P99), Ratio(again.P99))
	fmt.Fprintf(w, "%s\t%s\t%s\t", MS(r.Stock.Worst), MS(r.Libra.Worst), Ratio(libra.Worst))
	fmt.Fprintf(w, "%s\t%s\t%d\t\n", harvested, accelerated, r.Resizes)
}

func (s Slowdown) String() string {
	if math.IsNaN(s.Fraction) {
		return "none"
	}
	return fmt.Sprintf("%+.1f %% (%s, request %d)", 100*s.Fraction, s.Function, s.N)
}

// Number is v as the format says, or a dash when there is none.
func Number(format string, v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

// MS is a time in milliseconds. The small ones have a digit more: theirs is the overhead.
func MS(v float64) string {
	if v < 100 {
		return Number("%.1f", v)
	}
	return Number("%.0f", v)
}

// Ratio is a ratio to two digits.
func Ratio(v float64) string   { return Number("%.2f", v) }
func percent(v float64) string { return Number("%.0f %%", 100*v) }
