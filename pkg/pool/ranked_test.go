package pool_test

import (
	"maps"
	"slices"
	"time"

	"libra.dev/libra/pkg/pool"
)

// ranked is an invocation that neither lends nor
// borrows.
func ranked(id, pod string, cpuTime time.Duration) pool.Invocation {
	inv := invocation(id, 0, cpu(0), cpu(0))
	inv.Pod, inv.Ranked, inv.CPUTime = "default/"+pod, true, cpuTime
	return inv
}

func (s scene) expectInFlight(want map[string][]pool.Flight) {
	s.Helper()
	got := s.read().InFlight
	for _, pod := range slices.Collect(maps.Keys(got)) {
		got[pod[len("default/"):]] = got[pod]
		delete(got, pod)
	}
	s.equal(want, got)
}

// rankedScenes are about what the agent ranks.
var rankedScenes = []play{
	{"what is ranked is told by pod, in the order of the Begins", func(s scene) {
		s.begin(ranked("1", "a", 40*time.Millisecond))
		s.pass(7 * time.Millisecond)
		s.begin(ranked("2", "b", 0))
		s.begin(ranked("3", "a", 300*time.Microsecond))
		unranked := ranked("4", "a", time.Second)
		unranked.Ranked = false
		s.begin(unranked)
		s.pass(3 * time.Millisecond)
		s.expectInFlight(map[string][]pool.Flight{
			"a": {{ID: "1", Age: 10 * time.Millisecond, CPUTime: 40 * time.Millisecond}, {ID: "3", Age: 3 * time.Millisecond, CPUTime: time.Millisecond}},
			"b": {{ID: "2", Age: 3 * time.Millisecond}},
		})
		s.end("1")
		s.end("2")
		s.expectInFlight(map[string][]pool.Flight{"a": {{ID: "3", Age: 3 * time.Millisecond, CPUTime: time.Millisecond}}})
	}},
	{"a Begin that comes again does not make it younger", func(s scene) {
		s.begin(ranked("1", "a", time.Second))
		s.pass(time.Second)
		s.begin(ranked("1", "a", time.Second))
		s.expectInFlight(map[string][]pool.Flight{"a": {{ID: "1", Age: time.Second, CPUTime: time.Second}}})
	}},
	{"what is ranked is told on a node that is closed, and lapses", func(s scene) {
		s.begin(ranked("1", "a", time.Second))
		s.pass(pool.LeaseTTL - time.Millisecond)
		s.expectInFlight(map[string][]pool.Flight{"a": {{ID: "1", Age: pool.LeaseTTL - time.Millisecond, CPUTime: time.Second}}})
		s.pass(time.Millisecond)
		s.expectInFlight(map[string][]pool.Flight{})
	}},
	{"an unranked invocation after a ranked one", func(s scene) {
		s.begin(ranked("1", "a", time.Second))
		s.end("1")
		s.begin(invocation("b", time.Minute, cpu(0), cpu(0)))
		s.expectInFlight(map[string][]pool.Flight{})
	}},
	{"a clock that goes back makes nothing younger than new", func(s scene) {
		s.begin(ranked("1", "a", time.Second))
		s.pass(-time.Hour)
		s.expectInFlight(map[string][]pool.Flight{"a": {{ID: "1", CPUTime: time.Second}}})
	}},
}
