package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

// weightsOf returns weights of pods a, b and so on of one group. The kubelet gives each of
// them 100.
func weightsOf(weights ...int64) []podWeight {
	var all []podWeight
	for i, w := range weights {
		all = append(all, podWeight{pod: "default/" + string(rune('a'+i)), parent: "burstable", weight: w, kubelet: 100})
	}
	return all
}

// frame has the weights from a time on.
type frame struct {
	from    float64
	weights []podWeight
}

// weighFor observes every 10 ms until to. An agent runs from the time agent on.
func weighFor(to, agent float64, frames ...frame) *tracker {
	tr := newTracker()
	for now := at(0); now.Before(at(to)); now = now.Add(10 * time.Millisecond) {
		m := moment{at: now, view: view{at: now}, busyAt: now, agent: !now.Before(at(agent))}
		for _, f := range frames {
			if !now.Before(at(f.from)) {
				m.weights = f.weights
			}
		}
		tr.observe(m)
	}
	return tr
}

func TestSumsOfWeights(t *testing.T) {
	other := podWeight{pod: "default/other", parent: "guaranteed", weight: 100, kubelet: 100}
	elsewhere := podWeight{pod: "elsewhere/other", parent: "burstable", weight: 100, kubelet: 100}
	given := weightsOf(180, 20)
	for name, c := range map[string]struct {
		tracker *tracker
		want    int
	}{
		"what one has less, another has more":                                    {weighFor(1, 0, frame{0, given}), 0},
		"less than there is to share":                                            {weighFor(1, 0, frame{0, weightsOf(150, 20)}), 0},
		"an agent raises first":                                                  {weighFor(0.03, 0, frame{0, weightsOf(100, 100)}, frame{0.01, weightsOf(180, 100)}, frame{0.02, given}), 1},
		"it raises too much":                                                     {weighFor(1, 0, frame{0, weightsOf(100, 100)}, frame{0.01, weightsOf(181, 20)}), 1},
		"the kubelet gives one its own back, and the agent follows":              {weighFor(1, 0, frame{0, given}, frame{0.1, weightsOf(180, 100)}, frame{0.3, given}), 0},
		"the kubelet gives one its own back, and nobody follows":                 {weighFor(1, 0, frame{0, given}, frame{0.1, weightsOf(180, 100)}), 1},
		"the kubelet gives all their own back, one by one, without an agent":     {weighFor(4, 9, frame{0, given}, frame{0.1, weightsOf(180, 100)}, frame{2, weightsOf(100, 100)}), 0},
		"the kubelet forgets one, without an agent":                              {weighFor(4, 9, frame{0, given}, frame{0.1, weightsOf(180, 100)}), 1},
		"a pod has ended whose part another has":                                 {weighFor(2, 0, frame{0, given}, frame{0.1, given[:1]}, frame{0.9, weightsOf(100)}), 0},
		"and it keeps that":                                                      {weighFor(2, 0, frame{0, given}, frame{0.1, given[:1]}), 1},
		"another raises for it when it has ended":                                {weighFor(2, 0, frame{0, weightsOf(100, 100)}, frame{0.5, weightsOf(100)}, frame{0.6, weightsOf(180)}, frame{1.4, weightsOf(100)}), 0},
		"and does so later":                                                      {weighFor(3, 0, frame{0, weightsOf(100, 100)}, frame{0.5, weightsOf(100)}, frame{1.6, weightsOf(180)}, frame{1.7, weightsOf(100)}), 1},
		"a new pod has given before it was known":                                {weighFor(2, 0, frame{0, weightsOf(180)}, frame{0.5, given}), 0},
		"what another parent's pods have is not theirs":                          {weighFor(1, 0, frame{0, append(weightsOf(100), other)}, frame{0.1, []podWeight{with(weightsOf(150)[0], 150), with(other, 50)}}), 1},
		"nor what another namespace's have":                                      {weighFor(1, 0, frame{0, append(weightsOf(100), elsewhere)}, frame{0.1, []podWeight{with(weightsOf(150)[0], 150), with(elsewhere, 50)}}), 1},
		"what could not be read at once tells nothing, and what was read stands": {weighFor(1, 0, frame{0, given}, frame{0.1, nil}, frame{0.5, given}), 0},
	} {
		if got := c.tracker.breaches(); len(got) != c.want {
			t.Errorf("%s: %+v, want %d", name, got, c.want)
		}
	}
}

func with(w podWeight, weight int64) podWeight { w.weight = weight; return w }

func TestLongestTimeWithTooMuchWeight(t *testing.T) {
	tr := weighFor(1, 0, frame{0, weightsOf(180, 20)}, frame{0.1, weightsOf(180, 100)}, frame{0.3, weightsOf(180, 20)})
	if got, want := tr.shares.longest(), 190*time.Millisecond; got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestFloorOfWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := podWeight{pod: "default/p", kubelet: rapid.Int64Range(2, 262_144).Draw(t, "kubelet")}
		w.weight = rapid.Int64Range(1, w.kubelet).Draw(t, "weight")
		below := float64(w.weight) < float64(w.kubelet)/8-1
		if w.belowFloor() != below || len(moment{weights: []podWeight{w}}.wrong()) > 0 != below {
			t.Fatalf("%d of %d: below its floor is %t", w.weight, w.kubelet, w.belowFloor())
		}
	})
}

func TestWeightsAreTheKubeletsWhereNothingCoversThem(t *testing.T) {
	weights := weightsOf(180, 20)
	covered := moment{at: at(10), source: api.SourceNode, view: view{at: at(10)}, busyAt: at(10), agent: true, weights: weights}
	for name, c := range map[string]struct {
		change func(m *moment)
		away   bool
	}{
		"under load":                         {func(*moment) {}, false},
		"just after the last answer":         {func(m *moment) { m.busyAt = at(9.5) }, false},
		"nothing is under way":               {func(m *moment) { m.busyAt = at(8) }, true},
		"under owners":                       {func(m *moment) { m.source = api.SourceOwners }, true},
		"while the source changes":           {func(m *moment) { m.source, m.changing = api.SourceOwners, true }, false},
		"with stock":                         {func(m *moment) { m.source = "" }, true},
		"no agent runs":                      {func(m *moment) { m.agent = false }, true},
		"the pool was lost for a lease":      {func(m *moment) { m.view.at = at(3.5) }, true},
		"the pool was lost a while ago":      {func(m *moment) { m.view.at = at(6) }, false},
		"the pool was never read":            {func(m *moment) { m.view = view{} }, true},
		"nothing is under way, and all rest": {func(m *moment) { m.busyAt, m.weights = at(8), weightsOf(100, 100) }, false},
	} {
		m := covered
		c.change(&m)
		tr := newTracker()
		tr.observe(m)
		if got := len(tr.away) > 0; got != c.away {
			t.Errorf("%s: away is %t", name, got)
		}
		if m.whole() != !slices.ContainsFunc(m.weights, podWeight.moved) {
			t.Errorf("%s: whole is %t", name, m.whole())
		}
	}
}

func TestReadAtOnce(t *testing.T) {
	readings := func(all ...[]podWeight) func() []podWeight {
		return func() []podWeight {
			next := all[0]
			if len(all) > 1 {
				all = all[1:]
			}
			return next
		}
	}
	// Between two reads of files, an agent lowered one weight and raised another.
	if got, ok := atOnce(readings(weightsOf(100, 180), weightsOf(20, 180))); !ok || got[0].weight != 20 {
		t.Errorf("got %v, %t", got, ok)
	}
	calls := int64(0)
	if got, ok := atOnce(func() []podWeight { calls++; return weightsOf(calls) }); ok || got != nil || calls != 1+snapshotTries {
		t.Errorf("of weights that never rest: %v, %t after %d readings", got, ok, calls)
	}
}

// As long as an agent lowers before it raises, no reading of one moment breaks a rule; and
// each raise that comes first is found.
func TestSharesFindWhoRaisesFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := weightsOf(100, 100, 100, 100)
		tr := newTracker()
		observe := func(n int) {
			tr.observe(moment{at: at(0).Add(time.Duration(n) * time.Millisecond), agent: true, weights: slices.Clone(weights)})
		}
		observe(0)
		steps := rapid.IntRange(1, 40).Draw(t, "steps")
		for n := range steps {
			from, to := rapid.IntRange(0, 3).Draw(t, "from"), rapid.IntRange(0, 3).Draw(t, "to")
			by := rapid.Int64Range(0, weights[from].weight-20).Draw(t, "by")
			weights[from].weight -= by
			observe(3*n + 1)
			weights[to].weight += by
			observe(3*n + 2)
		}
		if got := tr.breaches(); len(got) > 0 {
			t.Fatalf("%+v", got)
		}
		// All the weight that is left to share, and one more.
		left := int64(1)
		for _, w := range weights {
			left += w.kubelet - w.weight
		}
		weights[0].weight = max(weights[0].weight+left, 101+left)
		observe(3 * steps)
		if got := tr.breaches(); len(got) != 1 || !strings.Contains(got[0].what, "added up to") {
			t.Fatalf("%+v, want one of the sum", got)
		}
	})
}

func TestWhatIsLeftOfAPod(t *testing.T) {
	for name, c := range map[string]struct {
		weight     int64
		containers bool
		remains    bool
	}{
		"ended":                    {2, false, true},
		"a container starts again": {112, false, false},
		"lowered":                  {14, false, false},
		"lowered to nothing":       {2, true, false},
	} {
		if got := (podWeight{weight: c.weight, kubelet: 112}).remains(c.containers); got != c.remains {
			t.Errorf("%s: %t", name, got)
		}
	}
}
