package report

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testingclock "k8s.io/utils/clock/testing"
)

// memory is a Store.
type memory struct {
	slots map[Slot]map[string][]byte
	puts  int
	// fails makes calls fail; with done, they store the records nevertheless.
	fails, done bool
}

var errAway = errors.New("no answer from Redis")

func (m *memory) PutReports(_ context.Context, writer string, encoded map[Slot][]byte) error {
	m.puts++
	if !m.fails || m.done {
		for slot, record := range encoded {
			if m.slots == nil {
				m.slots = map[Slot]map[string][]byte{}
			}
			if m.slots[slot] == nil {
				m.slots[slot] = map[string][]byte{}
			}
			m.slots[slot][writer] = record
		}
	}
	if m.fails {
		return errAway
	}
	return nil
}

// sum returns what a reader counts.
func (m *memory) sum(t *testing.T) Record {
	t.Helper()
	all := Record{}
	for _, writers := range m.slots {
		for writer, encoded := range writers {
			if err := Decode(encoded, all); err != nil {
				t.Fatal(writer, err)
			}
		}
	}
	return all
}

// Whether records are sent again, answered or not, or another run takes over: nothing counts twice,
// and what was sent counts.
func TestNothingCountsTwice(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		clk := testingclock.NewFakeClock(time.Unix(1_000_000_000, 0))
		store := &memory{}
		tallies := make([]*Tally, 3)
		senders := make([]*Sender, 3)
		counted, lost := Record{}, Record{}
		unsent := make([]Record, 3) // counted, and not known to be in the store
		incarnations := 0
		start := func(i int) {
			incarnations++
			tallies[i] = &Tally{}
			senders[i] = &Sender{Clock: clk, Store: store, Writer: fmt.Sprint("writer-", incarnations), Drain: tallies[i].Drain}
			unsent[i] = Record{}
		}
		send := func(i int) {
			store.fails, store.done = random.IntN(4) == 0, random.IntN(2) == 0
			senders[i].send(t.Context())
			if !store.fails {
				unsent[i] = Record{}
			}
		}
		for i := range senders {
			start(i)
		}
		for range 300 {
			i := random.IntN(len(senders))
			switch random.IntN(8) {
			case 0, 1, 2, 3:
				f, s := function(random.IntN(3)), &Sums{Requests: 1, CouldLendCPU: random.Int64N(1000)}
				tallies[i].Add(f, s)
				counted.Add(f, s)
				unsent[i].Add(f, s)
			case 4, 5, 6:
				send(i)
				clk.Step(time.Duration(random.IntN(8)) * time.Second)
			case 7: // it restarts, and may lose what it had not sent
				for f, s := range unsent[i] {
					lost.Add(f, s)
				}
				start(i)
			}
		}
		store.fails = false
		for _, s := range senders {
			s.send(t.Context())
		}
		got := store.sum(t)
		for f, want := range counted {
			var least Sums
			least.Add(want)
			if l := lost[f]; l != nil {
				for i := range least {
					least[i] -= l[i]
				}
			}
			g := got[f]
			if g == nil {
				g = &Sums{}
			}
			for i := range g {
				if g[i] > want[i] || g[i] < least[i] {
					t.Fatalf("seed %d: field %d of %s is %d, want %d to %d", seed, i, f, g[i], least[i], want[i])
				}
			}
		}
	}
}

func TestItSendsOnlyWhatIsNew(t *testing.T) {
	clk, store, tally := testingclock.NewFakeClock(time.Unix(1_000_000_000, 0)), &memory{}, &Tally{}
	s := &Sender{Clock: clk, Store: store, Writer: "writer", Drain: tally.Drain}
	s.send(t.Context())
	if store.puts != 0 {
		t.Error("It sends when nothing was counted.")
	}
	tally.Add(function(1), &Sums{Requests: 1})
	for range 3 {
		s.send(t.Context())
	}
	if store.puts != 1 {
		t.Errorf("It sends the same %d times.", store.puts)
	}
	clk.Step(Slots * SlotTime)
	s.send(t.Context())
	if len(s.slots) != 0 {
		t.Errorf("It keeps slots that are over: %v", s.slots)
	}
}

// Counts from while Redis was away are sent when it is back, unless they are too old to matter.
func TestWhatCouldNotBeSentIsSentLater(t *testing.T) {
	clk, store, tally := testingclock.NewFakeClock(time.Unix(1_000_000_000, 0)), &memory{fails: true}, &Tally{}
	var told []error
	s := &Sender{Clock: clk, Store: store, Writer: "writer", Drain: tally.Drain, OnError: func(err error) { told = append(told, err) }}
	for i := range 2 * Slots {
		tally.Add(function(i), &Sums{Requests: 1})
		s.send(t.Context())
		clk.Step(SlotTime)
	}
	if len(s.slots) > Slots {
		t.Errorf("It keeps %d slots, want at most %d.", len(s.slots), Slots)
	}
	store.fails = false
	tally.Add(function(100), &Sums{Requests: 1})
	s.send(t.Context())
	want := Record{function(100): &Sums{Requests: 1}}
	for i := Slots + 1; i < 2*Slots; i++ {
		want[function(i)] = &Sums{Requests: 1}
	}
	if diff := cmp.Diff(want, store.sum(t)); diff != "" {
		t.Errorf("Sent (-want +got):\n%s", diff)
	}
	if len(told) != 2 || !errors.Is(told[0], errAway) || told[1] != nil {
		t.Errorf("It tells %v, want once that it fails and once that it does not.", told)
	}
}

func TestWhatIsCountedLastIsSentAtTheEnd(t *testing.T) {
	clk, store, tally := testingclock.NewFakeClock(time.Unix(1_000_000_000, 0)), &memory{}, &Tally{}
	s := &Sender{Clock: clk, Store: store, Writer: "writer", Drain: tally.Drain}
	tally.Add(function(1), &Sums{Requests: 7})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Run(ctx)
	if got := store.sum(t)[function(1)]; got == nil || got[Requests] != 7 {
		t.Errorf("The store has %v, want 7 requests", got)
	}
}

func TestMeans(t *testing.T) {
	// Two cores for half of the window, and 300 MiB all the time.
	window := 10 * time.Minute
	if got := MeanCPUMilli(CPUTime(2000, window/2), window); got != 1000 {
		t.Errorf("%dm, want 1000m", got)
	}
	if got := MeanMemoryBytes(MemoryTime(300<<20, window), window); got != 300<<20 {
		t.Errorf("%d bytes, want %d", got, 300<<20)
	}
	if got := MeanCPUMilli(5, 0); got != 0 {
		t.Errorf("%d over no time, want 0", got)
	}
}

func TestEveryReasonHasAName(t *testing.T) {
	seen := map[string]bool{}
	for f := ClusterIP; f <= Mode; f++ {
		if name := Reasons[f]; name == "" || seen[name] {
			t.Errorf("Field %d has the name %q, want one of its own.", f, name)
		}
		seen[Reasons[f]] = true
	}
}
