package evaluation

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
)

// WritePlacements does what WriteReport does for measurements of placements, each over the one that it is compared
// with.
func WritePlacements(dir string, out io.Writer, title string, d Data) error {
	p, err := comparePlacements(d)
	if err != nil {
		return fmt.Errorf("compare the measurements: %w", err)
	}
	return writeAll(dir, out, title, p.document(), p.results())
}

// placed is a comparison of placements.
type placed struct {
	*comparison
	// whole treats all loads and numbers of pods as one.
	whole *comparison
}

// allLoads is the combination that whole has.
var allLoads = combination{part: PartPlacement}

func comparePlacements(d Data) (*placed, error) {
	c, err := compare(d)
	if err != nil {
		return nil, err
	}
	whole, err := compare(d.atOnce())
	return &placed{c, whole}, err
}

// atOnce puts all blocks of placements into one combination. Blocks that had the same schedule get the same number.
func (d Data) atOnce() Data {
	numbers := map[string]int{}
	var blocks []Block
	for _, b := range d.Blocks {
		if b.Part != PartPlacement {
			continue
		}
		schedule := fmt.Sprint(b.Load, b.Pods, b.Number)
		if numbers[schedule] == 0 {
			numbers[schedule] = len(numbers) + 1
		}
		b.Number, b.Load, b.Pods = numbers[schedule], 0, 0
		blocks = append(blocks, b)
	}
	d.Blocks = blocks
	return d
}

// borrowed is how much CPU was lent to those that could use it.
var borrowed = acceleratedCPU.named("borrowed_core_s", "borrowed core-seconds")

func (f figure) named(name, title string) figure {
	f.name, f.title = name, title
	return f
}

// beyondAlone is how much CPU a block's requests use beyond user allocations if each has a worker to itself: about as
// much could be borrowed.
func (c *comparison) beyondAlone() figure {
	allocated := map[string]float64{}
	for _, f := range c.Functions {
		allocated[f.Name] = float64(f.Limit.CPUMilli) / 1000
	}
	return figure{name: "beyond_alone_core_s", title: "core-seconds beyond allocations, alone", total: func(b Block) float64 {
		ms := 0.0
		for _, r := range b.Requests {
			a := c.alone[input{r.Function, r.Input}]
			ms += max(0, a.CPUMilliseconds-allocated[r.Function]*a.Milliseconds)
		}
		return ms / 1000
	}}
}

// meanOf is the mean response time of a function's requests.
func meanOf(function string) figure { return meanTook.ofFunction(function) }

// The goal: with coverage, this many times as much is borrowed as with hash, and at no load requests take longer.
const (
	coverageArm     = "coverage"
	coverageBorrows = 1.3
	meanNoMoreThan  = 1 + stats.Tolerance
	p99NoMoreThan   = 1 + stats.ToleranceP99
)

// over returns an arm's figure over that of the arm that it is compared with.
func (c *comparison) over(k combination, arm string, f figure) interval {
	return c.ratio(k, arm, c.base(arm), f)
}

// toldOver says what can be told about that ratio.
func (c *comparison) toldOver(k combination, arm string, f figure) string {
	return c.told(k, arm, c.base(arm), c.base(arm)+AgainSuffix, f)
}

// held returns the arms of a combination that are compared with another.
func (c *comparison) held(k combination) []string {
	return slices.DeleteFunc(c.armsOf(k), func(arm string) bool {
		base := c.base(arm)
		return base == "" || base == arm || len(c.common(k, arm, base)) == 0
	})
}

func (p *placed) document() []section {
	sections := []section{p.glance(), p.goal(), p.choices(), p.functionsTold(), p.measured()}
	for _, k := range p.of(PartPlacement) {
		sections = append(sections, section{
			Title: "Requests: " + k.String(), Tables: []table{p.figuresTable(k), p.usageTable(k), p.functionsOver(k)},
			draw: func() ([]figureDrawn, error) { return p.loadPlots(k) },
		})
	}
	return append(sections, p.failuresSection(), p.method())
}

// glance returns the section for readers who read nothing else.
func (p *placed) glance() section {
	s := section{Title: "At a glance", brief: true}
	t := table{Caption: "Over hash under the same source, with 95 % intervals", Head: []string{"load", "placement", p99Computing.title, "", meanSlowdown.title, "", borrowed.title}}
	rows := func(c *comparison, k combination) {
		for _, arm := range c.held(k) {
			row := []string{k.String(), c.title(arm)}
			for _, f := range []figure{p99Computing, meanSlowdown} {
				row = append(row, c.over(k, arm, f).String(), c.toldOver(k, arm, f))
			}
			t.add(append(row, c.over(k, arm, borrowed).String())...)
		}
	}
	for _, k := range p.of(PartPlacement) {
		rows(p.comparison, k)
	}
	rows(p.whole, allLoads)
	s.Tables = []table{t}
	if len(t.Rows) == 0 {
		s.Text = []string{"No placement was measured beside hash."}
		return s
	}
	s.Text = []string{
		fmt.Sprintf("Faster and slower: the whole interval is on that side of 1, and the ratio is further from 1 than that of hash again. The same: the interval is within 5 %% of 1 (10 %% for a P99). Everything else is %s. The rows of all loads add up requests and core-seconds, so the highest load counts most.", notKnown),
		p.failedTold(),
	}
	return s
}

// goal shows whether coverage reaches its goal.
func (p *placed) goal() section {
	t := table{Head: []string{"load", "figure", "wanted", "measured (95 % interval)", "hash again", "verdict"}}
	judge := func(c *comparison, k combination, f figure, g stats.Goal) {
		r, noise := c.over(k, coverageArm, f), c.over(k, c.base(coverageArm)+AgainSuffix, f)
		if !r.measured() {
			return
		}
		verdict, why := judgePlacement(g, r, noise)
		if disturbed := c.disturbed(k, coverageArm, c.base(coverageArm)); disturbed != "" {
			verdict, why = stats.NotKnown, disturbed
		}
		t.add(k.String(), f.title, g.String(), r.String(), ratioText(noise.value), stats.Said(verdict, why))
	}
	judge(p.whole, allLoads, borrowed, stats.Goal{Bound: coverageBorrows, AtLeast: true})
	for _, k := range p.of(PartPlacement) {
		judge(p.comparison, k, borrowed, stats.Goal{Bound: coverageBorrows, AtLeast: true})
		judge(p.comparison, k, meanSlowdown, stats.Goal{Bound: meanNoMoreThan})
		judge(p.comparison, k, p99Computing, stats.Goal{Bound: p99NoMoreThan})
	}
	return section{Title: "The goals of coverage", brief: true, Tables: []table{t}, Text: []string{
		fmt.Sprintf("Under the source owners, coverage should borrow at least %.1f times as much as hash, and should be slower at no load by more than the noise of such a figure: 5 %% (10 %% for a P99). The whole interval decides: if it contains the bound, the verdict is not known. Nor is it known if hash again is as far from hash as coverage is from the bound, or if the hypervisor took more than %s in a block of either.", coverageBorrows, mostStolenText),
	}}
}

// judgePlacement says whether a ratio reaches a goal. That is known if its whole interval is on one side of the bound,
// and the ratio is further from the bound than the noise is from 1.
func judgePlacement(g stats.Goal, ratio, noise interval) (v stats.Verdict, why string) {
	v, why = g.Absolute(ratio.plain())
	switch {
	case v == stats.NotKnown:
		return v, why
	case !noise.measured():
		return stats.NotKnown, "hash was not measured again"
	case math.Abs(math.Log(ratio.value/g.Bound)) <= math.Abs(math.Log(noise.value)):
		return stats.NotKnown, fmt.Sprintf("hash again is %s of hash", ratioText(noise.value))
	}
	return v, why
}

// choices shows how often requests had a choice.
func (p *placed) choices() section {
	t := table{Caption: "Where requests could go", Head: []string{
		"load", "placement", "requests", "with a choice", "moved to another pod than Knative picked", "no other pod had a slot", "Knative's pick without a question",
		"borrowed core-seconds a block", "used beyond allocations if each ran alone", "core-seconds promised by placement, and share granted"}}
	wanted := p.beyondAlone()
	for _, k := range p.of(PartPlacement) {
		for _, arm := range p.armsOf(k) {
			sum, requests := p.placedOf(k, arm)
			if requests == 0 {
				continue
			}
			share := func(n float64) string {
				if len(sum.Outcomes) == 0 {
					return "-"
				}
				return percentText(n / float64(requests))
			}
			without := sum.Outcomes[outcomeNoChoice]
			t.add(k.String(), p.title(arm), fmt.Sprint(requests), share(sum.Choices()), share(sum.Outcomes[outcomeMoved]), share(without),
				share(max(0, float64(requests)-sum.Choices()-without)), report.Number("%.1f", p.value(k, arm, borrowed).value), report.Number("%.1f", p.value(k, arm, wanted).value), sum.grantedText())
		}
	}
	return section{Title: "Where there was a choice", brief: true, Tables: []table{t}, Text: []string{
		"A request has a choice if more than one of its function's pods had a free slot when it came, on one node or on several. The placement stock chooses nothing, and does not count what it could have chosen.",
		"Few loans, decided by few requests, make up what is borrowed in a block: see how much hash again differs from hash.",
	}}
}

// placedOf adds up how an arm's requests were placed.
func (c *comparison) placedOf(k combination, arm string) (sum Placed, requests int) {
	sum.Outcomes = map[string]float64{}
	for _, b := range c.blocks[k][arm] {
		if b.Placed == nil {
			continue
		}
		requests += len(b.Requests)
		for outcome, n := range b.Placed.Outcomes {
			sum.Outcomes[outcome] += n
		}
		sum.Promised, sum.Granted = sum.Promised+b.Placed.Promised, sum.Granted+b.Placed.Granted
	}
	return sum, requests
}

func (p Placed) grantedText() string {
	if p.Promised == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f, %s", p.Promised, percentText(p.Granted/p.Promised))
}

// functionsTold shows where a placement did not help: for which functions, at which load.
func (p *placed) functionsTold() section {
	t := table{Caption: "Functions by how long their requests take on average, over hash", Head: []string{"load", "placement", faster, slower, theSame, notKnown}}
	for _, k := range p.of(PartPlacement) {
		for _, arm := range p.held(k) {
			by := map[string][]string{}
			for _, name := range p.functions(k) {
				told := p.toldOver(k, arm, meanOf(name))
				by[told] = append(by[told], name)
			}
			row := []string{k.String(), p.title(arm)}
			for _, told := range []string{faster, slower, theSame, notKnown} {
				row = append(row, strings.Join(by[told], ", "))
			}
			t.add(row...)
		}
	}
	return section{Title: "Where it did not help", Tables: []table{t}}
}

// functionsOver shows each function by itself.
func (p *placed) functionsOver(k combination) table {
	arms := p.held(k)
	if len(arms) == 0 {
		return table{}
	}
	t := table{Caption: "How long requests to each function take on average, over hash under the same source", Head: []string{"function", "requests of each"}}
	for _, arm := range arms {
		t.Head = append(t.Head, p.title(arm))
	}
	for _, name := range p.functions(k) {
		row := []string{name, p.calls(k, arms[0], name)}
		for _, arm := range arms {
			row = append(row, p.over(k, arm, meanOf(name)).String())
		}
		t.add(row...)
	}
	return t
}

func (p *placed) method() section {
	return section{Title: "How it was measured", Text: []string{
		"All placements of a source have the same pods, of Libra in the mode full, equally many on each worker. They differ in one setting, which the activator follows; a block begins once requests are placed by that setting. A block sends the requests of one schedule, each at its time, whether or not earlier requests were answered. The blocks of a load that have the same number have the same requests, at the same times, with each placement, one after the other in random order; the next number has a new schedule. A response time runs from when the request was due to the last byte of the answer.",
		"The slow-down of a request is its response time over that of the same input alone on an idle worker without limits. Computing requests are those to functions that do not mostly wait for others. P99 is the nearest rank, over the requests of all blocks. A failed request counts as the longest response time that any request had under the same load, over its own time alone for its slow-down.",
		"Borrowed core-seconds are how far limits in force were above user allocations, times how long they were in force, by the node agents' counters, from before a block until its last request was answered. Only the source owners has them: with node, what is used beyond an allocation is what nobody else wanted, and no volume of it is set aside.",
		fmt.Sprintf("A ratio is over the blocks that both placements have. Its interval is from %d resamples: each draws slices of 5 s of the schedules with replacement, the same for both placements, and computes the ratio from them; 95 %% of these ratios lie in an interval. As many resamples draw whole blocks, and the interval that is stated holds both. Borrowed core-seconds, of which a block has one value, have an interval by Student's t, of the logarithms of the blocks' ratios. A few blocks show little of what differs between blocks: hash again shows that.", resamples),
		fmt.Sprintf("Number of times that hash drew nodes for the functions: %d. Each further draw has the same functions in another namespace.", max(1, p.Draws)),
	}}
}

// results returns the results for machines. Whatever was not measured is absent.
func (p *placed) results() report.Results {
	m := map[string]float64{"failed_requests": float64(len(p.failures())), "seconds_total": p.Elapsed.Seconds()}
	put := func(c *comparison, k combination, of string) {
		for _, arm := range c.armsOf(k) {
			name := func(figure string) string { return figure + "_" + arm + of }
			for _, f := range []figure{p99Computing, meanSlowdown, borrowed} {
				if r := c.over(k, arm, f); slices.Contains(c.held(k), arm) && r.measured() {
					m[name(f.name)], m[name(f.name)+"_low"], m[name(f.name)+"_high"] = r.value, r.low, r.high
				}
			}
			m[name("borrowed_core_s_a_block")] = c.value(k, arm, borrowed).value
			m[name("beyond_alone_core_s_a_block")] = c.value(k, arm, c.beyondAlone()).value
			if sum, requests := c.placedOf(k, arm); len(sum.Outcomes) > 0 {
				m[name("share_with_choice")] = sum.Choices() / float64(requests)
				m[name("share_moved")] = sum.Outcomes[outcomeMoved] / float64(requests)
				m[name("granted_over_promised")] = sum.Granted / sum.Promised
			}
			m[name("requests")] = float64(c.requests(k, arm))
		}
	}
	put(p.whole, allLoads, "")
	for _, k := range p.of(PartPlacement) {
		put(p.comparison, k, fmt.Sprintf("_%d_%d", k.load, k.pods))
	}
	return report.Results{Machine: p.Machine.About, Commit: p.Commit, Seed: p.Seed, Metrics: m}
}
