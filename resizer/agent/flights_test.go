package agent

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/pool"
)

// Whatever the agent is told and not told, and however old a state is when it arrives: an agent
// that hears everything knows exactly what is in flight, and the next state corrects what it did
// not hear. A request keeps what it has used.
func TestFlightsFollowThePool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := epoch
		inPod := []pool.Flight{} // in the pool; Age is since epoch
		used := map[string]time.Duration{}
		var fs flights
		var asked time.Time
		var state []pool.Flight // under way since asked
		deaf := false           // something was not heard since the last state was asked for
		missed := false         // or before that

		check := func() {
			var want, got []string
			for _, f := range inPod {
				want = append(want, f.ID)
			}
			for _, f := range fs.known {
				got = append(got, f.id)
				if f.used != used[f.id] {
					t.Fatalf("%s has used %v, want %v", f.id, f.used, used[f.id])
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if !deaf && !missed && !slices.Equal(want, got) {
				t.Fatalf("the flights are %q, want %q", got, want)
			}
		}
		n := 0
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				n++
				f := pool.Flight{ID: fmt.Sprint(n), Age: now.Sub(epoch), CPUTime: ms(7)}
				inPod = append(inPod, f)
				if rapid.Bool().Draw(t, "heard") {
					fs.begin(flight{id: f.ID, begun: now, heard: now, work: work{predicted: f.CPUTime}})
				} else {
					deaf = true
				}
			},
			"end": func(t *rapid.T) {
				if len(inPod) == 0 {
					t.Skip("nothing is in flight")
				}
				i := rapid.IntRange(0, len(inPod)-1).Draw(t, "which")
				id := inPod[i].ID
				inPod = slices.Delete(slices.Clone(inPod), i, i+1)
				if rapid.Bool().Draw(t, "heard") {
					fs.end(id, now)
				} else {
					deaf = true
				}
			},
			"ask": func(t *rapid.T) {
				if !asked.IsZero() {
					t.Skip("one is under way")
				}
				now = now.Add(ms(1))
				asked, state = now, slices.Clone(inPod)
				for i := range state {
					state[i].Age = now.Sub(epoch) - state[i].Age
				}
				missed, deaf = missed || deaf, false
			},
			"answer": func(t *rapid.T) {
				if asked.IsZero() {
					t.Skip("none is under way")
				}
				fs.follow(state, asked)
				asked, missed = time.Time{}, false
				for _, f := range fs.known {
					if _, ok := used[f.id]; !ok {
						used[f.id] = f.used
					}
				}
			},
			"use": func(t *rapid.T) {
				if len(fs.known) == 0 {
					t.Skip("nobody is known")
				}
				each := ms(rapid.Int64Range(0, 100).Draw(t, "each"))
				for _, f := range fs.known {
					used[f.id] += each
				}
				fs.divide(each * time.Duration(len(fs.known)))
			},
			"let pass": func(*rapid.T) { now = now.Add(ms(1)) },
			"":         func(*rapid.T) { check() },
		})
	})
}

// A state does not change how long a known request has run. A request that is found in a state began when the state
// says, and has run since it was found: what it used before is not known.
func TestFlightsOfAState(t *testing.T) {
	var fs flights
	fs.begin(flight{id: "a", begun: epoch, heard: epoch})
	begun, ended := fs.follow([]pool.Flight{{ID: "a", Age: time.Hour}, {ID: "b", Age: ms(5)}}, epoch.Add(ms(10)))
	if len(begun) != 1 || !begun[0].Equal(epoch.Add(ms(5))) || ended {
		t.Errorf("begun %v, ended %t", begun, ended)
	}
	if got := fs.known[0].ran(epoch.Add(time.Second)); got != time.Second {
		t.Errorf("it ran for %v", got)
	}
	if got := fs.known[1].ran(epoch.Add(time.Second)); got != time.Second-ms(10) {
		t.Errorf("what was found ran for %v, want as long as it is known", got)
	}
	if _, ended := fs.follow(nil, epoch.Add(ms(20))); !ended || len(fs.known) != 0 || len(fs.ended) != 0 {
		t.Errorf("%+v, ended %t", fs, ended)
	}
}

func TestActivity(t *testing.T) {
	at, cpu := epoch, 5*time.Second
	var a activity
	for i, step := range []struct {
		after, used time.Duration
		busy, woke  bool
		since       time.Duration // used since the last rest
	}{
		{0, 0, false, false, 0},
		{ms(25), 0, false, false, 0},
		{ms(25), 500 * time.Microsecond, false, false, 0},
		{ms(25), 500 * time.Microsecond, true, true, ms(1)},
		{ms(25), ms(25), true, false, ms(26)},
		{ms(90), 900 * time.Microsecond, true, false, 26900 * time.Microsecond},
		{ms(10), 0, false, false, 0},
		{ms(25), ms(3), true, true, ms(3)},
		{ms(200), 0, false, false, 0},
	} {
		at, cpu = at.Add(step.after), cpu+step.used
		if woke := a.add(at, cpu); woke != step.woke || a.busy != step.busy || a.busy && a.used != step.since {
			t.Fatalf("step %d: woke %v, %+v; want %+v", i, woke, a, step)
		}
	}
	if a.add(at, 0); a.busy {
		t.Error("a container that began anew is busy")
	}
}
