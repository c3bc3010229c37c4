package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// wholeWithin is how long after the end of a fault a pod may be away from what it is
// owed, without a lease.
const wholeWithin = 10 * time.Second

// noClocks says what chaos cannot do here.
const noClocks = `Clocks: a container has the machine's, and chaos leaves the machine's alone. What a clock that jumps
back or ahead does to the pool is in the model tests of pkg/pool, not here. To a part that is paused here,
time jumps ahead by the pause.`

// verdict is what all outcomes come to.
type verdict struct {
	outcomes []outcome
	stock    map[string]outcome // by name
}

func judge(outcomes []outcome) verdict {
	v := verdict{stock: map[string]outcome{}}
	for _, o := range outcomes {
		if o.stock {
			v.stock[o.name] = o
		} else {
			v.outcomes = append(v.outcomes, o)
		}
	}
	return v
}

// extra is how many more requests failed unexcused than with stock in the same fault; where
// stock had not that fault, how many failed unexcused.
func (v verdict) extra(o outcome) int {
	return max(0, len(o.unexcused)-len(v.stock[o.name].unexcused))
}

// broken are the bounds that do not hold.
func (v verdict) broken() error {
	var errs []error
	wrong := func(o outcome, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", o.name, fmt.Sprintf(format, args...)))
	}
	for _, o := range v.outcomes {
		if o.err != nil {
			wrong(o, "%v", o.err)
			continue
		}
		if n := v.extra(o); n > 0 {
			wrong(o, "%d requests failed without an excuse, beyond those of stock", n)
		}
		if o.oomKills > 0 {
			wrong(o, "%d OOM kills", o.oomKills)
		}
		if o.violations > 0 {
			wrong(o, "%d violations of invariants", o.violations)
		}
		if o.whole > wholeWithin {
			wrong(o, "whole only %.1f s after the end of the fault, not within %v", o.whole.Seconds(), wholeWithin)
		}
		if !o.onLoan {
			wrong(o, "nothing was on loan when it began, so that it shows nothing")
		}
	}
	for name, o := range v.stock {
		if o.err != nil {
			errs = append(errs, fmt.Errorf("%s on stock: %w", name, o.err))
		}
	}
	return errors.Join(errs...)
}

// metrics are flat: of all trials with Libra, and of each. A trial that came to nothing
// has none.
func (v verdict) metrics() map[string]float64 {
	m := map[string]float64{}
	var all outcome
	extra := 0
	for _, o := range v.outcomes {
		if o.err != nil {
			continue
		}
		all.sent, all.failed, all.excused = all.sent+o.sent, all.failed+o.failed, all.excused+o.excused
		all.oomKills, all.violations = all.oomKills+o.oomKills, all.violations+o.violations
		all.longestAway, all.whole = max(all.longestAway, o.longestAway), max(all.whole, o.whole)
		extra += v.extra(o)
		m["trials"]++
		o.put(m, key(o.name)+"_")
		m[key(o.name)+"_extra_failed_requests"] = float64(v.extra(o))
	}
	all.put(m, "")
	m["extra_failed_requests"] = float64(extra)
	for name, o := range v.stock {
		if o.err == nil {
			o.put(m, "stock_"+key(name)+"_")
		}
	}
	return m
}

func (o outcome) put(m map[string]float64, prefix string) {
	m[prefix+"sent_requests"] = float64(o.sent)
	m[prefix+"failed_requests"] = float64(o.failed)
	m[prefix+"excused_requests"] = float64(o.excused)
	m[prefix+"longest_away_s"] = o.longestAway.Seconds()
	m[prefix+"whole_after_s"] = o.whole.Seconds()
	m[prefix+"oom_kills"] = float64(o.oomKills)
	m[prefix+"violations"] = float64(o.violations)
}

func key(name string) string { return strings.ReplaceAll(name, "-", "_") }

// write writes the table.
func (v verdict) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\trequests\t\t\tunexcused\t\taway without\tOOM\tviola-\twhole\t\t")
	fmt.Fprintln(t, "fault\tsent\tfailed\texcused\tLibra\tstock\ta lease, s\tkills\ttions\tafter, s\ton loan\twhat")
	for _, o := range v.outcomes {
		if o.err != nil {
			fmt.Fprintf(t, "%s\t\t\t\t\t\t\t\t\t\t\t%s\n", o.name, cmp.Or(firstLine(o.err), o.what()))
			continue
		}
		stock := "-"
		if s, ok := v.stock[o.name]; ok && s.err == nil {
			stock = fmt.Sprint(len(s.unexcused))
		}
		loan := "no"
		if o.onLoan {
			loan = "yes"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%s\t%.2f\t%d\t%d\t%.2f\t%s\t%s\n", o.name, o.sent, o.failed, o.excused,
			len(o.unexcused), stock, o.longestAway.Seconds(), o.oomKills, o.violations, o.whole.Seconds(), loan, o.what())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", noClocks)
	return err
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
