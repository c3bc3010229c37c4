package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"libra.dev/libra/pkg/api"
)

// wholeWithin is how long after the end of a fault a pod may be away from its state at rest
// with nothing to cover it, and how long after the last answer anything may be away.
const wholeWithin = 10 * time.Second

// noClocks says what chaos does not test.
const noClocks = `Clocks: containers have the machine's clock, which chaos leaves alone. The model tests of pkg/pool/pooltest,
not chaos, cover what a clock that jumps back or ahead does to the pool. For a part that chaos pauses, time
jumps ahead by the length of the pause.`

// verdict sums up all outcomes.
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

// extra returns how many more requests failed unexcused than with stock in the same fault.
// Without a run on stock, it returns how many failed unexcused.
func (v verdict) extra(o outcome) int {
	return max(0, len(o.unexcused)-len(v.stock[o.name].unexcused))
}

// broken returns an error for each bound that does not hold.
func (v verdict) broken() error {
	var errs []error
	wrong := func(o outcome, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s on %s: %s", o.name, o.on(), fmt.Sprintf(format, args...)))
	}
	for _, o := range v.outcomes {
		if o.err != nil {
			wrong(o, "%v", o.err)
			continue
		}
		if n := v.extra(o); n > 0 {
			wrong(o, "requests that failed without an excuse, beyond those of stock: %d", n)
		}
		if o.oomKills > 0 {
			wrong(o, "OOM kills: %d", o.oomKills)
		}
		if o.violations > 0 {
			wrong(o, "violations of invariants: %d", o.violations)
		}
		if o.whole > wholeWithin {
			wrong(o, "the pods were whole only %.1f s after the end of the fault, not within %v", o.whole.Seconds(), wholeWithin)
		}
		if o.settled > wholeWithin {
			wrong(o, "everything was at rest only %.1f s after the last answer, not within %v", o.settled.Seconds(), wholeWithin)
		}
		if !o.inHand {
			wrong(o, "%s when the fault began, so the trial shows nothing", o.idle())
		}
	}
	for name, o := range v.stock {
		if o.err != nil {
			errs = append(errs, fmt.Errorf("%s on stock: %w", name, o.err))
		}
	}
	return errors.Join(errs...)
}

// idle says what Libra did not have in hand.
func (o outcome) idle() string {
	switch {
	case o.source == api.SourceOwners:
		return "nothing was on loan"
	case o.crowded():
		return "no function was held while weights differed from the kubelet's"
	default:
		return "no weight differed from the kubelet's"
	}
}

// metrics returns flat figures: of all trials with Libra, of those under each source, and of
// each trial. A trial that failed has none.
func (v verdict) metrics() map[string]float64 {
	m := map[string]float64{}
	v.sum(m, "", v.outcomes)
	for _, source := range allSources {
		of := slices.DeleteFunc(slices.Clone(v.outcomes), func(o outcome) bool { return o.source != source })
		if len(of) > 0 {
			v.sum(m, string(source)+"_", of)
		}
	}
	for _, o := range v.outcomes {
		if o.err == nil {
			prefix := string(o.source) + "_" + key(o.name) + "_"
			o.put(m, prefix)
			m[prefix+"extra_failed_requests"] = float64(v.extra(o))
		}
	}
	for name, o := range v.stock {
		if o.err == nil {
			o.put(m, "stock_"+key(name)+"_")
		}
	}
	return m
}

// sum puts the figures of several trials together.
func (v verdict) sum(m map[string]float64, prefix string, of []outcome) {
	var all outcome
	trials, extra := 0, 0
	for _, o := range of {
		if o.err != nil {
			continue
		}
		all.sent, all.failed, all.excused = all.sent+o.sent, all.failed+o.failed, all.excused+o.excused
		all.oomKills, all.violations = all.oomKills+o.oomKills, all.violations+o.violations
		all.longestAway, all.whole, all.settled = max(all.longestAway, o.longestAway), max(all.whole, o.whole), max(all.settled, o.settled)
		all.below, all.overweight, all.longest = max(all.below, o.below), max(all.overweight, o.overweight), max(all.longest, o.longest)
		extra += v.extra(o)
		trials++
	}
	all.put(m, prefix)
	m[prefix+"trials"] = float64(trials)
	m[prefix+"extra_failed_requests"] = float64(extra)
}

func (o outcome) put(m map[string]float64, prefix string) {
	m[prefix+"sent_requests"] = float64(o.sent)
	m[prefix+"failed_requests"] = float64(o.failed)
	m[prefix+"excused_requests"] = float64(o.excused)
	m[prefix+"longest_request_s"] = o.longest.Seconds()
	m[prefix+"longest_away_s"] = o.longestAway.Seconds()
	m[prefix+"whole_after_s"] = o.whole.Seconds()
	m[prefix+"at_rest_after_s"] = o.settled.Seconds()
	m[prefix+"longest_below_ceiling_s"] = o.below.Seconds()
	m[prefix+"longest_overweight_s"] = o.overweight.Seconds()
	m[prefix+"oom_kills"] = float64(o.oomKills)
	m[prefix+"violations"] = float64(o.violations)
}

func key(name string) string { return strings.ReplaceAll(name, "-", "_") }

// write prints the outcomes as a table.
func (v verdict) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\t\trequests\t\t\tunexcused\t\taway un-\tOOM\tviola-\twhole\tat rest\tin\t")
	fmt.Fprintln(t, "source\tfault\tsent\tfailed\texcused\tLibra\tstock\tcovered, s\tkills\ttions\tafter, s\tafter, s\thand\twhat")
	for _, o := range v.outcomes {
		if o.err != nil {
			fmt.Fprintf(t, "%s\t%s%s%s\n", o.source, o.name, strings.Repeat("\t", 12), cmp.Or(firstLine(o.err), o.what()))
			continue
		}
		stock := "-"
		if s, ok := v.stock[o.name]; ok && s.err == nil {
			stock = fmt.Sprint(len(s.unexcused))
		}
		inHand := "no"
		if o.inHand {
			inHand = "yes"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%s\t%.2f\t%d\t%d\t%.2f\t%.2f\t%s\t%s\n", o.source, o.name, o.sent, o.failed, o.excused,
			len(o.unexcused), stock, o.longestAway.Seconds(), o.oomKills, o.violations, o.whole.Seconds(), o.settled.Seconds(), inHand, o.what())
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
