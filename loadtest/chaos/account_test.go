package main

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

var start = time.Unix(1000, 0)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

func TestOnlyWhatWasInFlightThroughTheKilledPartIsExcused(t *testing.T) {
	everything := excuse{from: at(10), to: at(12)}
	uploader := excuse{function: "uploader", from: at(10), to: at(12)}
	failed := func(function string, sent, ended float64) request {
		return request{function: function, sent: at(sent), ended: at(ended), err: "503"}
	}
	for name, c := range map[string]struct {
		request request
		excuses []excuse
		excused bool
	}{
		"under way at the kill":          {failed("plain", 9, 10.5), []excuse{everything}, true},
		"under way all the time":         {failed("plain", 9, 15), []excuse{everything}, true},
		"sent while it was not there":    {failed("plain", 11, 11.1), []excuse{everything}, true},
		"answered before":                {failed("plain", 8, 9.9), []excuse{everything}, false},
		"sent when it was back":          {failed("plain", 12.1, 13), []excuse{everything}, false},
		"to the pod that was deleted":    {failed("uploader", 9, 11), []excuse{uploader}, true},
		"to another pod":                 {failed("plain", 9, 11), []excuse{uploader}, false},
		"nothing was killed":             {failed("plain", 9, 11), nil, false},
		"by the second excuse of a pair": {failed("plain", 9, 11), []excuse{uploader, everything}, true},
	} {
		answered := request{function: "plain", sent: at(9), ended: at(11)}
		n, excused, unexcused := tally([]request{answered, c.request}, c.excuses)
		if n != 1 || (excused == 1) != c.excused || len(unexcused) != 1-excused {
			t.Errorf("%s: %d failed, %d excused, %d not", name, n, excused, len(unexcused))
		}
	}
}

const mib = 1 << 20

func res(cpuMilli, memoryMiB int64) api.Resources {
	return api.Resources{CPUMilli: cpuMilli, MemoryBytes: memoryMiB * mib}
}

func TestAwayIsWhatNoBalanceCovers(t *testing.T) {
	owed := res(700, 256)
	lent, borrowed := pool.Balance{Lent: res(300, 100)}, pool.Balance{Borrowed: res(300, 100)}
	for name, c := range map[string]struct {
		limits  api.Resources
		balance pool.Balance
		away    bool
	}{
		"what is owed":                          {owed, pool.Balance{}, false},
		"lowered, and lent":                     {res(400, 256), lent, false},
		"lowered, and lent nothing":             {res(400, 256), pool.Balance{}, true},
		"lowered, and lent less than that":      {res(399, 256), lent, true},
		"lowered, and borrowed":                 {res(400, 256), borrowed, true},
		"raised, and borrowed":                  {res(1000, 256), borrowed, false},
		"raised, and borrowed less than that":   {res(1001, 256), borrowed, true},
		"raised, and lent":                      {res(1000, 256), lent, true},
		"more memory, which harms nobody":       {res(700, 512), pool.Balance{}, false},
		"no limit at all, and nothing borrowed": {res(0, 256), pool.Balance{}, true},
	} {
		s := sample{pod: "default/p", owed: owed, limits: c.limits}
		if got := s.away(c.balance, false); got != c.away {
			t.Errorf("%s: away is %t, want %t", name, got, c.away)
		}
	}
}

// watchFor observes the samples every 10 ms between two times.
func watchFor(tr *tracker, from, to float64, v view, samples ...sample) {
	for now := at(from); now.Before(at(to)); now = now.Add(10 * time.Millisecond) {
		tr.observe(moment{at: now, view: v, samples: samples})
	}
}

func TestTimeAway(t *testing.T) {
	lowered := sample{pod: "default/p", owed: res(700, 256), limits: res(400, 256)}
	well := sample{pod: "default/p", owed: res(700, 256), limits: res(700, 256)}
	lending := view{at: at(0), balances: map[string]pool.Balance{"default/p": {Lent: res(300, 0)}}}

	tr := newTracker()
	watchFor(tr, 0, 2, lending, lowered) // covered
	if tr.longestAway() != 0 {
		t.Errorf("away for %v with a balance in the pool", tr.longestAway())
	}
	watchFor(tr, 2, 8, lending, lowered) // the pool was last read at 0: from 5 s on, nothing covers it
	watchFor(tr, 8, 9, lending, well)
	watchFor(tr, 9, 9.05, lending, lowered) // a restore that takes its time
	watchFor(tr, 9.05, 10, lending, well)
	if got, want := tr.longestAway(), 2980*time.Millisecond; got != want {
		t.Errorf("away for %v at most, want %v", got, want)
	}
	for end, want := range map[float64]time.Duration{6: 1990 * time.Millisecond, 9: 0} {
		if got := tr.wholeAfter(at(end)); got != want {
			t.Errorf("whole %v after %v s, want %v", got, end, want)
		}
	}
}

func TestTwoPodsAreNotOneAway(t *testing.T) {
	tr := newTracker()
	away := func(pod string) sample { return sample{pod: pod, owed: res(700, 256), limits: res(400, 256)} }
	watchFor(tr, 0, 1, view{}, away("default/a"))
	watchFor(tr, 1, 2, view{}, away("default/b"))
	if got := tr.longestAway(); got >= time.Second {
		t.Errorf("away for %v, and no pod was away for longer than a second", got)
	}
}

func TestSumOfTheLimits(t *testing.T) {
	donor := sample{pod: "default/d", owed: res(700, 256), limits: res(400, 256)}
	whole := sample{pod: "default/d", owed: res(700, 256), limits: res(700, 256)}
	borrower := sample{pod: "default/b", owed: res(500, 256), limits: res(800, 256)}
	raised := sample{pod: "default/b", owed: res(500, 256), limits: res(500, 300)}
	short := sample{pod: "default/b", owed: res(500, 256), limits: res(500, 255)}
	for name, c := range map[string]struct {
		watch func(tr *tracker)
		want  int
	}{
		"what one has less, another has more": {func(tr *tracker) { watchFor(tr, 0, 1, view{}, donor, borrower) }, 0},
		"the donor's restore goes first":      {func(tr *tracker) { watchFor(tr, 0, 0.05, view{}, whole, borrower) }, 0},
		"the borrower is not shrunk":          {func(tr *tracker) { watchFor(tr, 0, 0.5, view{}, whole, borrower) }, 1},
		"twice": {func(tr *tracker) {
			watchFor(tr, 0, 0.5, view{}, whole, borrower)
			watchFor(tr, 0.5, 1, view{}, donor, borrower)
			watchFor(tr, 1, 1.5, view{}, whole, borrower)
		}, 2},
		"more memory than is owed": {func(tr *tracker) { watchFor(tr, 0, 1, view{}, whole, raised) }, 0},
		"less memory than is owed": {func(tr *tracker) { watchFor(tr, 0, 1, view{}, whole, short) }, 1},
	} {
		tr := newTracker()
		c.watch(tr)
		if got := len(tr.violations()) + len(tr.breaches()); got != c.want {
			t.Errorf("%s: %d violations, want %d", name, got, c.want)
		}
	}
}

func TestAnExcessTellsWhoWasAboveAtTheWorst(t *testing.T) {
	tr := newTracker()
	whole := sample{pod: "default/d", owed: res(700, 256), limits: res(700, 256)}
	borrower := sample{pod: "default/b", owed: res(500, 256), limits: res(600, 256)}
	worse := borrower
	worse.limits = res(800, 256)
	watchFor(tr, 0, 0.2, view{}, whole, borrower)
	watchFor(tr, 0.2, 0.4, view{}, whole, worse)
	watchFor(tr, 0.4, 0.6, view{}, whole, borrower)
	got := tr.violations()
	if len(got) != 1 || got[0].most != 300-2*nudgeMilli || len(got[0].at) != 1 || got[0].at[0] != worse {
		t.Errorf("violations %+v, want one with the borrower at its most", got)
	}
}

func TestForbiddenChanges(t *testing.T) {
	list := func(cpu string) corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse(cpu)} }
	build := func(optedIn bool, request, limit, proxyRequest string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{}}}
		if optedIn {
			p.Labels[api.EnabledLabel] = api.EnabledValue
		}
		p.Spec.Containers = []corev1.Container{
			{Name: api.UserContainer, Resources: corev1.ResourceRequirements{Requests: list(request), Limits: list(limit)}},
			{Name: api.QueueProxyContainer, Resources: corev1.ResourceRequirements{Requests: list(proxyRequest)}},
		}
		return p
	}
	for name, c := range map[string]struct {
		optedIn bool
		now     *corev1.Pod
		want    int
	}{
		"nothing":                       {true, build(true, "100m", "700m", "25m"), 0},
		"the same in another form":      {true, build(true, "0.1", "0.7", "25m"), 0},
		"a limit":                       {true, build(true, "100m", "100m", "25m"), 0},
		"a limit below the request":     {true, build(true, "100m", "99m", "25m"), 1},
		"a request":                     {true, build(true, "90m", "700m", "25m"), 1},
		"queue-proxy":                   {true, build(true, "100m", "700m", "26m"), 1},
		"a limit of a stranger":         {false, build(false, "100m", "600m", "25m"), 1},
		"a pod that opted in as it was": {false, build(false, "100m", "700m", "25m"), 0},
	} {
		if got := forbidden(build(c.optedIn, "100m", "700m", "25m"), c.now); len(got) != c.want {
			t.Errorf("%s: found %q, want %d", name, got, c.want)
		}
	}
}

func TestLoanIsSeen(t *testing.T) {
	for name, c := range map[string]struct {
		balances map[string]pool.Balance
		want     bool
	}{
		"nothing yet":      {nil, false},
		"nothing moved":    {map[string]pool.Balance{"default/p": {}}, false},
		"somebody lends":   {map[string]pool.Balance{"default/p": {Lent: res(1, 0)}}, true},
		"somebody borrows": {map[string]pool.Balance{"default/q": {}, "default/p": {Borrowed: res(0, 1)}}, true},
	} {
		if got := (view{at: at(0), balances: c.balances}).onLoan(); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !slices.ContainsFunc(kinds, func(k kind) bool { return k.part == pod && k.action == evict }) {
		t.Error("no pod is evicted")
	}
}

// ceilinged is a sample of a function with a ceiling of two cores.
func ceilinged(cpuMilli int64) sample {
	return sample{pod: "default/p", owed: res(700, 256), limits: res(cpuMilli, 256), ceiling: 2000}
}

func TestCeilings(t *testing.T) {
	for name, c := range map[string]struct {
		limit      int64
		rests      bool // it is whole
		held       bool // it is covered when it may be held
		outOfRules bool
	}{
		"at its ceiling":               {2000, true, true, false},
		"nudged at its ceiling":        {1999, false, true, false},
		"held to its allocation":       {700, false, true, false},
		"in between":                   {1300, false, true, false},
		"below its allocation":         {699, false, false, true},
		"above its ceiling":            {2001, false, false, true},
		"without a limit":              {0, false, false, true},
		"without a limit, as v2 reads": {-1, false, false, true},
	} {
		s := ceilinged(c.limit)
		if got := s.away(pool.Balance{}, false); got == c.rests {
			t.Errorf("%s: away is %t", name, got)
		}
		// Loans between owners cover nothing under a ceiling.
		if got := s.away(pool.Balance{Borrowed: res(5000, 0), Lent: res(5000, 0)}, true); got == c.held {
			t.Errorf("%s, and it may be held: away is %t", name, got)
		}
		m := moment{at: at(0), samples: []sample{s}}
		if got := len(m.wrong()) > 0; got != c.outOfRules {
			t.Errorf("%s: against the rules is %t", name, got)
		}
		if m.whole() != c.rests {
			t.Errorf("%s: whole is %t", name, m.whole())
		}
		m.changing = true
		if unlimited := c.limit <= 0; len(m.wrong()) > 0 != unlimited {
			t.Errorf("%s, while the source changes: %v", name, m.wrong())
		}
		if m.excess() > 0 {
			t.Errorf("%s: ceilings add up to %v too much", name, m.excess())
		}
	}
	// A nudge raises even a limit with no room above it.
	low := sample{pod: "default/p", owed: res(700, 256), limits: res(700+nudgeMilli, 256), ceiling: 700}
	if !low.inBounds() {
		t.Error("a nudge of what is owed as much as its ceiling is against the rules")
	}
}

func TestHeldOnlyByAnAgentAndForAWhile(t *testing.T) {
	held := ceilinged(700)
	for name, c := range map[string]struct {
		m    moment
		away bool
	}{
		"under load":                  {moment{at: at(10), agent: true, busyAt: at(10)}, false},
		"a while after":               {moment{at: at(17), agent: true, busyAt: at(10)}, false},
		"long after":                  {moment{at: at(19), agent: true, busyAt: at(10)}, true},
		"under load without an agent": {moment{at: at(10), busyAt: at(10)}, true},
	} {
		tr := newTracker()
		c.m.samples = []sample{held}
		tr.observe(c.m)
		if got := len(tr.away) > 0; got != c.away {
			t.Errorf("%s: away is %t", name, got)
		}
	}
}

func TestTimeBelowACeiling(t *testing.T) {
	tr := newTracker()
	watchFor(tr, 0, 1, view{}, ceilinged(700))
	watchFor(tr, 1, 2, view{}, ceilinged(2000))
	watchFor(tr, 2, 2.5, view{}, ceilinged(1000))
	if got, want := tr.below, 990*time.Millisecond; got != want {
		t.Errorf("%v at most, want %v", got, want)
	}
	if len(tr.breaches()) > 0 {
		t.Errorf("%+v", tr.breaches())
	}
}

// A borrower without a limit would have everything, and add nothing to the sum of limits.
func TestNoLimitIsAgainstTheRulesUnderOwners(t *testing.T) {
	for cpuMilli, want := range map[int64]int{-1: 1, 0: 1, 1: 0, 700: 0} {
		s := sample{pod: "default/p", owed: res(700, 256), limits: res(cpuMilli, 256)}
		if got := (moment{samples: []sample{s}}).wrong(); len(got) != want {
			t.Errorf("with a limit of %dm: %v, want %d", cpuMilli, got, want)
		}
	}
	if got := (moment{samples: []sample{{pod: "default/p", limits: res(0, 256)}}}).wrong(); len(got) != 0 {
		t.Errorf("of a pod that is owed no limit: %v", got)
	}
}

func TestOneReadingAgainstTheRulesIsAViolation(t *testing.T) {
	tr := newTracker()
	watchFor(tr, 0, 1, view{}, ceilinged(2000))
	watchFor(tr, 1, 1.01, view{}, ceilinged(500))
	watchFor(tr, 1.01, 2, view{}, ceilinged(2000))
	watchFor(tr, 2, 2.5, view{}, ceilinged(0))
	got := tr.breaches()
	if len(got) != 2 || got[0].length() != 0 || got[1].length() != 490*time.Millisecond {
		t.Errorf("breaches %+v, want two", got)
	}
}

func TestStrangersAreLeftAlone(t *testing.T) {
	well := sample{pod: "default/plain", owed: res(500, 128), limits: res(500, 128), stranger: true}
	changed := well
	changed.limits = res(400, 128)
	weight := podWeight{pod: "default/plain", weight: 20, kubelet: 20, stranger: true}
	moved := weight
	moved.weight = 21
	for name, c := range map[string]struct {
		m    moment
		want int
	}{
		"as they were":     {moment{samples: []sample{well}, weights: []podWeight{weight}}, 0},
		"another limit":    {moment{samples: []sample{changed}, weights: []podWeight{weight}}, 1},
		"another weight":   {moment{samples: []sample{well}, weights: []podWeight{moved}}, 1},
		"while it changes": {moment{samples: []sample{changed}, changing: true}, 1},
	} {
		if got := c.m.wrong(); len(got) != c.want {
			t.Errorf("%s: %v, want %d", name, got, c.want)
		}
		if c.m.excess() > 0 {
			t.Errorf("%s: its limits count: %v", name, c.m.excess())
		}
	}
}
