package evaluation

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/demo/report"
)

// Agreement is whether another evaluation, of another seed or another trace, puts the
// policies in the same order by P99 on the mixed workload.
type Agreement struct {
	Policies []string // that both have, the fastest of this one first
	Others   []string // the same, the fastest of the other first
	Swapped  []Swap   // the pairs that come in another order there

	other Data
	there Comparison
}

// Swap is a pair of policies that the other evaluation has the other way round.
type Swap struct {
	Faster, Slower string  // here
	Gap, OthersGap float64 // of their P99, in parts of stock's
	// WithinNoise is whether one of the gaps is no more than what the same policy differs by
	// from round to round, or stock from itself, in the same evaluation.
	WithinNoise bool
}

// Agree compares the order of the policies in two evaluations; here is what Compare makes
// of d.
func Agree(d Data, here Comparison, other Data) Agreement {
	there := Compare(other)
	a := Agreement{other: other, there: there}
	for _, p := range append([]string{Stock}, d.policies(Mixed)...) {
		if !slices.Contains(a.Policies, p) && !math.IsNaN(here.mixedP99(p).Median) && !math.IsNaN(there.mixedP99(p).Median) {
			a.Policies = append(a.Policies, p)
		}
	}
	a.Others = slices.Clone(a.Policies)
	by := func(c Comparison) func(x, y string) int {
		return func(x, y string) int { return cmp.Compare(c.mixedP99(x).Median, c.mixedP99(y).Median) }
	}
	slices.SortStableFunc(a.Policies, by(here))
	slices.SortStableFunc(a.Others, by(there))
	for i, faster := range a.Policies {
		for _, slower := range a.Policies[i+1:] {
			if slices.Index(a.Others, faster) < slices.Index(a.Others, slower) {
				continue
			}
			s := Swap{Faster: faster, Slower: slower, Gap: here.gap(faster, slower), OthersGap: there.gap(slower, faster)}
			s.WithinNoise = s.Gap <= here.noise(faster, slower) || s.OthersGap <= there.noise(faster, slower)
			a.Swapped = append(a.Swapped, s)
		}
	}
	return a
}

// mixedP99 is a policy's on the mixed workload, over stock's.
func (c Comparison) mixedP99(policy string) Spread {
	if policy == Stock {
		return Spread{1, 1, 1}
	}
	return c.of(policy, Mixed).P99
}

func (c Comparison) gap(faster, slower string) float64 {
	return c.mixedP99(slower).Median - c.mixedP99(faster).Median
}

// noise is how much P99 differs without a cause, as far as it was measured.
func (c Comparison) noise(policies ...string) float64 {
	noise := 0.0
	for _, p := range policies {
		s := c.mixedP99(p)
		noise = max(noise, s.Most-s.Least)
	}
	if again := c.mixedP99(Again); !math.IsNaN(again.Median) {
		noise = max(noise, math.Abs(again.Least-1), math.Abs(again.Most-1))
	}
	return noise
}

// agreement is the section on the other evaluation.
func (d Data) agreement(here Comparison) section {
	a, other, there := here.Agreement, here.Agreement.other, here.Agreement.there
	s := section{Title: "Another evaluation: the same order?", Text: []string{
		fmt.Sprintf("This one: seed %d, arrivals from %s, %d rounds, commit %s. The other one: seed %d, arrivals from %s, %d rounds, commit %s. Compared is the order by P99 on the mixed workload.",
			d.Seed, d.Trace, here.Rounds, d.Commit, other.Seed, other.Trace, there.Rounds, other.Commit),
	}}
	if len(a.Swapped) == 0 {
		s.Text = append(s.Text, fmt.Sprintf("Both have the same order: %s.", d.words(a.Policies)))
	}
	for _, swap := range a.Swapped {
		why := fmt.Sprintf("That is more than the noise that was measured. Who took at least P99: %s; in the other evaluation %s.",
			d.culprits(swap.Faster, swap.Slower), other.culprits(swap.Faster, swap.Slower))
		if swap.WithinNoise {
			why = "One of the two is within the noise of its evaluation: the order of these is not known."
		}
		s.Text = append(s.Text, fmt.Sprintf("%s is faster than %s here, by %s of stock's P99, and slower there, by %s. %s",
			d.title(swap.Faster), d.title(swap.Slower), share(swap.Gap), share(swap.OthersGap), why))
	}
	t := table{Caption: "P99 over stock's, workload mixed", Head: []string{"policy", "here", "least", "most", "there", "least", "most"}}
	for _, p := range a.Policies {
		ours, theirs := here.mixedP99(p), there.mixedP99(p)
		t.add(d.title(p), report.Ratio(ours.Median), report.Ratio(ours.Least), report.Ratio(ours.Most),
			report.Ratio(theirs.Median), report.Ratio(theirs.Least), report.Ratio(theirs.Most))
	}
	s.Tables = []table{t}
	return s
}

// culprits are the functions of the requests at or beyond P99, under each policy.
func (d Data) culprits(policies ...string) string {
	var said []string
	for _, p := range policies {
		count := map[string]int{}
		for _, run := range d.runs(p, Mixed) {
			most := report.Percentile(run.milliseconds(""), 99)
			for _, r := range run.Results {
				if r.Error == "" && r.DurationMS >= most {
					count[r.Function]++
				}
			}
		}
		var functions []string
		for f, n := range count {
			functions = append(functions, fmt.Sprintf("%s %d times", f, n))
		}
		slices.Sort(functions)
		said = append(said, fmt.Sprintf("under %s %s", d.title(p), strings.Join(functions, ", ")))
	}
	return strings.Join(said, ", ")
}
