package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// drawSteps draws up to most volumes over time, which begin before now or after it, and which fall, rise, or do
// both.
func drawSteps(t *rapid.T, most int, label string) []pool.Step {
	steps := []pool.Step{{Volume: drawVolume(t, label)}}
	from := epoch.Add(-20 * time.Millisecond)
	for range rapid.IntRange(0, most).Draw(t, label+" steps") {
		from = from.Add(time.Duration(rapid.SampledFrom([]int{1, 7, 30, 40, 900}).Draw(t, label+" ms")) * time.Millisecond)
		steps = append(steps, pool.Step{From: from, Volume: drawVolume(t, label)})
	}
	order := rapid.SampledFrom([]func(api.Resources, api.Resources) api.Resources{nil, api.Resources.Min, api.Resources.Max}).Draw(t, label+" goes")
	for i := 1; order != nil && i < len(steps); i++ {
		steps[i].Volume = order(steps[i].Volume, steps[i-1].Volume)
	}
	return steps
}

func drawVolume(t *rapid.T, label string) api.Resources {
	return api.Resources{
		CPUMilli:    rapid.Int64Range(0, 500).Draw(t, label+" milli"),
		MemoryBytes: rapid.Int64Range(0, 500).Draw(t, label+" MiB") << 20,
	}
}

// integral computes the coverage of one resource by its definition, millisecond by millisecond.
func integral(steps []pool.Step, of func(pool.Step) int64, want, debited int64, now time.Time, lasts time.Duration) float64 {
	if want == 0 {
		return 1
	}
	at := func(moment time.Time) (volume int64) {
		for _, s := range steps {
			if !s.From.After(moment) {
				volume = of(s)
			}
		}
		return volume - debited
	}
	if lasts == 0 {
		return float64(max(0, min(at(now), want))) / float64(want)
	}
	var sum float64
	for moment := now; moment.Before(now.Add(lasts)); moment = moment.Add(time.Millisecond) {
		sum += float64(max(0, min(at(moment), want))) * float64(time.Millisecond)
	}
	return sum / (float64(want) * float64(lasts))
}

// Coverage is the integral of what there is minus what is debited, and a debit never raises it.
func TestCoverageIsTheIntegral(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(t)
		v := f.View("node", "a")
		p := pool.Profile{
			Node: "node", Heard: epoch, Capacity: api.Resources{CPUMilli: 1000},
			Unused:  drawSteps(rt, pool.MostSteps, "unused"),
			Domains: map[string]pool.DomainProfile{"a": {Lends: drawSteps(rt, pool.MostSteps, "lends")}},
		}
		f.hear(t, p)
		source := rapid.SampledFrom([]api.Source{api.SourceOwners, api.SourceNode}).Draw(rt, "source")
		cpu, memory := p.Domains["a"].Lends, p.Domains["a"].Lends
		if source == api.SourceNode {
			cpu = p.Unused
		}
		f.clock.Step(time.Duration(rapid.SampledFrom([]int{0, 7, 50, 100, 250, 251, 2000}).Draw(rt, "passed ms")) * time.Millisecond)
		d := Demand{
			Want: drawVolume(rt, "want"), Duration: time.Duration(rapid.IntRange(0, 900).Draw(rt, "ms")) * time.Millisecond,
			OwnCPUMilli: rapid.SampledFrom([]int64{0, 100}).Draw(rt, "own"),
		}
		// A request's use of its own allocation comes out of what is idle, too.
		own := func(d Demand) int64 {
			if source == api.SourceNode {
				return d.OwnCPUMilli
			}
			return 0
		}
		var debited api.Resources
		before := math.Inf(1)
		for i := range rapid.IntRange(1, 4).Draw(rt, "decisions") {
			now := f.clock.Now()
			got, known := v.Coverage(source, d, now)
			want := cpuWeight*integral(cpu, cpuOf, d.Want.CPUMilli, debited.CPUMilli+own(d), now, d.Duration) +
				(1-cpuWeight)*integral(memory, memoryOf, d.Want.MemoryBytes, debited.MemoryBytes, now, d.Duration)
			if !known || math.Abs(got-want) > 1e-9 || got < 0 || got > 1+1e-9 {
				rt.Fatalf("after %d debits %v of it is covered (known: %t), and the integral is %v", i, got, known, want)
			}
			if got > before {
				rt.Fatalf("a debit raised what is covered from %v to %v", before, got)
			}
			before = got
			c := NewCandidate(&Target{Source: source}, v)
			b := (&Query{Demand: d, Now: now}).bound([]Candidate{c})
			if closely := b.closely(&c); closely < got-1e-9 || closely > 1+1e-9 {
				rt.Fatalf("after %d debits %v is covered, and no more than %v", i, got, closely)
			}
			if roughly := b.atMost(b.roughly(&c)); roughly < got-1e-9 || roughly > 1+1e-9 {
				rt.Fatalf("after %d debits %v is covered, and no more than %v", i, got, roughly)
			}
			taken := Demand{Want: drawVolume(rt, "taken"), Duration: time.Second, OwnCPUMilli: rapid.Int64Range(0, 100).Draw(rt, "own of taken")}
			v.Debit(source, taken, now)
			debited = debited.Add(taken.Want)
			debited.CPUMilli += own(taken)
		}
	})
}

// If the pool has more steps than it may have, the lowest level of the rest counts.
func TestProfileOfTooManySteps(t *testing.T) {
	steps := make([]pool.Step, 0, 2*pool.MostSteps)
	for i := range cap(steps) {
		s := pool.Step{Volume: api.Resources{CPUMilli: int64(1000 - i)}}
		if i > 0 {
			s.From = epoch.Add(time.Duration(i) * time.Second)
		}
		steps = append(steps, s)
	}
	p := profileOf(steps, cpuOf, func(t time.Time) moment { return moment(t.Sub(epoch)) })
	for i, s := range steps {
		at := moment(time.Duration(i) * time.Second)
		if covered := p.covered(1000, 0, at, time.Millisecond); covered > float64(s.Volume.CPUMilli)/1000 {
			t.Errorf("at step %d it has %v, and there are %dm", i, covered, s.Volume.CPUMilli)
		}
	}
}

// thousand returns Views of a picture of 1,000 nodes with 16 steps each.
func thousand(b testing.TB) (now time.Time, views []*View) {
	clk := clock.RealClock{} // its times cost less to compare than a fake clock's
	now = clk.Now()
	s := &script{clock: clk}
	picture := newPicture(b, s, clk, zap.NewNop())
	random := rand.New(rand.NewPCG(1, 2))
	var profiles []pool.Profile
	for i := range 1000 {
		name := fmt.Sprint("node-", i)
		p := pool.Profile{Node: name, Heard: now, Capacity: api.Resources{CPUMilli: 8000}, Domains: map[string]pool.DomainProfile{}}
		volume, idle := api.Resources{}, random.Int64N(500)
		lends := []pool.Step{{From: now.Add(20 * time.Second)}}
		p.Unused = append(p.Unused, pool.Step{Volume: api.Resources{CPUMilli: idle}})
		for j := range pool.MostSteps {
			volume = volume.Add(api.Resources{CPUMilli: random.Int64N(80), MemoryBytes: random.Int64N(16 << 20)})
			step := pool.Step{Volume: volume}
			if j < pool.MostSteps-1 {
				step.From = now.Add(time.Duration(1000*(pool.MostSteps-1-j))*time.Millisecond + time.Duration(random.IntN(900))*time.Millisecond)
			}
			lends = append(lends, step)
			idle += random.Int64N(100)
			p.Unused = append(p.Unused, pool.Step{From: now.Add(time.Duration(j+1) * time.Second), Volume: api.Resources{CPUMilli: idle}})
		}
		slices.Reverse(lends)
		p.Domains["a"] = pool.DomainProfile{Lends: lends}
		profiles = append(profiles, p)
		views = append(views, picture.View(name, "a"))
	}
	s.tells(now, profiles...)
	if _, err := picture.refresh(b.Context()); err != nil {
		b.Fatal(err)
	}
	random.Shuffle(len(views), func(i, j int) { views[i], views[j] = views[j], views[i] })
	return now, views
}

// BenchmarkCoverage chooses among pods on 1,000 nodes, few of which have what is wanted. p99-us is for one
// choice.
func BenchmarkCoverage(b *testing.B) {
	for _, source := range []api.Source{api.SourceOwners, api.SourceNode} {
		b.Run(string(source), func(b *testing.B) { benchmarkCoverage(b, source) })
	}
}

func benchmarkCoverage(b *testing.B, source api.Source) {
	now, views := thousand(b)
	candidates := make([]Candidate, len(views))
	for i, v := range views {
		candidates[i] = NewCandidate(&Target{Dest: ip(i) + ":8012", Node: fmt.Sprint("node-", i), Source: source}, v)
	}
	took := make([]time.Duration, 0, 1<<20)
	random := rand.New(rand.NewPCG(3, 4))
	q := &Query{Revision: revID, Now: now}
	b.ReportAllocs()
	for b.Loop() {
		q.Demand = Demand{
			Want:     api.Resources{CPUMilli: 100 + random.Int64N(2000), MemoryBytes: random.Int64N(256 << 20)},
			Duration: time.Duration(random.IntN(10_000)) * time.Millisecond,
		}
		start := time.Now()
		Coverage(q, candidates)
		if len(took) < cap(took) {
			took = append(took, time.Since(start))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-us")
}

func TestCoverageAllocatesNothing(t *testing.T) {
	now, views := thousand(t)
	d := Demand{Want: api.Resources{CPUMilli: 500, MemoryBytes: 1 << 20}, Duration: time.Second}
	for _, source := range []api.Source{api.SourceOwners, api.SourceNode} {
		if n := testing.AllocsPerRun(100, func() {
			v := views[0]
			v.Coverage(source, d, now)
			v.Debit(source, d, now)
			v.Pressure(now)
			v.InFlight(now)
		}); n > 0 {
			t.Errorf("source %s: %v allocations", source, n)
		}
	}
}
