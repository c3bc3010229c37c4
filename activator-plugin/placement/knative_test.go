package placement

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"libra.dev/libra/activator-plugin/knativetest"
	"libra.dev/libra/pkg/api"
)

// event is something that happens to a revision or its requests.
type event struct {
	What string
	// I is the number of a pod, or of a request among those in flight.
	I int
}

const (
	knativeSees = "Knative sees that a pod comes or goes"
	slotsSee    = "the slots see that a pod comes or goes"
	bothSee     = "both see that a pod comes or goes"
	comes       = "a request comes"
	ends        = "a request ends"
)

// world is one revision as one activator has it, with Knative's throttler and the slots.
type world struct {
	concurrency int
	ask         Ask
	k           *knativetest.Knative
	all         *Slots

	knative, slots map[int]bool // the pods that each sees

	mu sync.Mutex
	// settling says that one of the two may have seen what the other has not seen yet.
	settling bool
	inFlight map[string]int
	running  []chan struct{}
	over     int
	broken   []string
}

// revision returns the slots' revision for the next request: the slots forget a revision that has neither pods
// nor requests.
func (w *world) revision() *Revision { return w.all.Of(revID, w.concurrency) }

func (w *world) breaks(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// send sends a request that lasts until release is closed.
func (w *world) send(ctx context.Context) {
	release := make(chan struct{})
	var c Choice
	err := w.k.Throttlers[0].Try(ctx, revID, func(dest string, _ bool) error {
		c = w.revision().Take(dest, w.ask)
		w.admitted(dest, c, release)
		<-release
		c.Release()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.inFlight[c.Dest]--
		return nil
	})
	if err != nil && ctx.Err() == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.breaks("Try() = %v", err)
	}
}

func (w *world) admitted(dest string, c Choice, release chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = append(w.running, release)
	w.inFlight[c.Dest]++
	n, same := w.inFlight[c.Dest], !w.settling && maps.Equal(w.knative, w.slots)
	switch {
	case c.Over != (n > w.concurrency):
		w.breaks("%s has %d of %d, and Over is %v", c.Dest, n, w.concurrency, c.Over)
	case c.Over && same:
		w.breaks("%s has %d of %d, and both see the same pods", c.Dest, n, w.concurrency)
	case c.Over && c.Outcome == Moved:
		w.breaks("%s has %d of %d, by being chosen", c.Dest, n, w.concurrency)
	case n > 2*w.concurrency:
		w.breaks("%s has %d of %d, more than twice that", c.Dest, n, w.concurrency)
	case same && (c.Outcome == NoSlot || c.Outcome == Unready):
		w.breaks("%s of %s, and both see the same pods", c.Outcome, dest)
	case c.Outcome != Moved && c.Dest != dest:
		w.breaks("it goes to %s, not to %s, and is %q", c.Dest, dest, c.Outcome)
	}
	if c.Over {
		w.over++
	}
}

func toggle(of map[int]bool, i int) {
	if of[i] {
		delete(of, i)
	} else {
		of[i] = true
	}
}

func (w *world) showKnative(t *testing.T) {
	var ips []string
	for i := range w.knative {
		ips = append(ips, ip(i))
	}
	w.k.Scale(t, ips...)
}

func (w *world) do(ctx context.Context, t *testing.T, s event) {
	w.mu.Lock()
	w.settling = s.What == bothSee
	switch s.What {
	case knativeSees:
		toggle(w.knative, s.I)
	case slotsSee:
		toggle(w.slots, s.I)
	case bothSee:
		toggle(w.knative, s.I)
		if w.knative[s.I] != w.slots[s.I] {
			toggle(w.slots, s.I)
		}
	}
	ready := w.slots[s.I]
	w.mu.Unlock()
	switch s.What {
	case comes:
		go w.send(ctx)
	case ends:
		w.mu.Lock()
		if len(w.running) > 0 {
			i := s.I % len(w.running)
			close(w.running[i])
			w.running = slices.Delete(w.running, i, i+1)
		}
		w.mu.Unlock()
	}
	if s.What == slotsSee || s.What == bothSee {
		p := readyPod(s.I, fmt.Sprint("node-", s.I%2))
		p.Ready = ready
		w.all.SetPod(revID, p)
	}
	if s.What == knativeSees || s.What == bothSee {
		w.showKnative(t)
	}
	synctest.Wait()
}

// runEvents returns what events broke with a policy, and how often a pod had more than its concurrency.
func runEvents(t *testing.T, concurrency int, policy Policy, events []event) (broken []string, over int) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			concurrency: concurrency, ask: Ask{Policy: policy, Now: now},
			k: knativetest.New(t, revID, int64(concurrency), 1), all: NewSlots(nil, nil),
			knative: map[int]bool{}, slots: map[int]bool{}, inFlight: map[string]int{},
		}
		ctx, cancel := context.WithCancel(t.Context())
		for _, s := range events {
			w.do(ctx, t, s)
		}
		// Requests that wait leave, and those that run end.
		cancel()
		synctest.Wait()
		for _, release := range w.running {
			close(release)
		}
		synctest.Wait()
		for dest, n := range w.inFlight {
			if n != 0 {
				w.breaks("%d are left in %s", n, dest)
			}
		}
		if n := w.revision().inFlight; n != 0 {
			w.breaks("%d are left in the slots", n)
		}
		broken, over = w.broken, w.over
	})
	return broken, over
}

func drawEvents(rt *rapid.T, kinds ...string) []event {
	return rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) event {
		return event{rapid.SampledFrom(kinds).Draw(rt, "what"), rapid.IntRange(0, 4).Draw(rt, "which")}
	}), 1, 40).Draw(rt, "events")
}

// While its slots and Knative's throttler see the same pods, an activator never sends a pod more than its
// concurrency. Otherwise it sends at most twice that. Both hold for every policy.
func TestNoPodHasTooMany(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		concurrency := rapid.SampledFrom([]int{1, 2, 5}).Draw(rt, "concurrency")
		name := rapid.SampledFrom(api.Placements).Draw(rt, "policy")
		kinds := []string{bothSee, comes, comes, comes, ends}
		if rapid.Bool().Draw(rt, "they see what happens at different times") {
			kinds = append(kinds, knativeSees, slotsSee)
		}
		if broken, _ := runEvents(t, concurrency, Named(name), drawEvents(rt, kinds...)); len(broken) > 0 {
			rt.Fatal(broken)
		}
	})
}

// There is one way to send a pod more than its concurrency. The slots have lost a pod that Knative still has,
// and a request of that pod is in another pod, where Knative still has a free slot.
func TestAPodThatIsLost(t *testing.T) {
	events := []event{
		{bothSee, 0}, {bothSee, 1},
		{comes, 0}, // Knative picks pod 0, and it goes to pod 1
		{slotsSee, 0},
		{comes, 0}, // Knative picks pod 1, which is full
	}
	broken, over := runEvents(t, 1, last, events)
	if len(broken) > 0 || over != 1 {
		t.Errorf("%d times a pod had more than its concurrency, want once; %v", over, broken)
	}
	// If both see it, Knative has no slot.
	events[3].What = bothSee
	if broken, over := runEvents(t, 1, last, events); len(broken) > 0 || over != 0 {
		t.Errorf("%d times a pod had more than its concurrency, want never; %v", over, broken)
	}
}

// With the policy stock, and without one, every pick is Knative's.
func TestStockIsStock(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		concurrency := rapid.SampledFrom([]int{1, 2, 5}).Draw(rt, "concurrency")
		policy := rapid.SampledFrom([]Policy{Stock, nil}).Draw(rt, "policy")
		moved := ""
		synctest.Test(t, func(t *testing.T) {
			k := knativetest.New(t, revID, int64(concurrency), 1)
			slots := NewSlots(nil, nil)
			pods := rapid.IntRange(1, 6).Draw(rt, "pods")
			var ips []string
			for i := range pods {
				ips = append(ips, ip(i))
				slots.SetPod(revID, readyPod(i, "a"))
			}
			k.Scale(t, ips...)
			synctest.Wait()
			var all sync.WaitGroup
			var mu sync.Mutex
			release := make(chan struct{})
			for range pods * concurrency {
				all.Go(func() {
					k.Throttlers[0].Try(t.Context(), revID, func(dest string, _ bool) error {
						c := slots.Of(revID, concurrency).Take(dest, Ask{Policy: policy, Now: now})
						defer c.Release()
						mu.Lock()
						if c.Dest != dest || c.Over {
							moved = fmt.Sprintf("from %s to %s", dest, c.Dest)
						}
						mu.Unlock()
						<-release
						return nil
					})
				})
			}
			synctest.Wait()
			close(release)
			all.Wait()
		})
		if moved != "" {
			rt.Fatal("A request is moved ", moved)
		}
	})
}

// However many activators and pods there are and were, each pod belongs to one activator, to the last slot. If
// there are enough pods, each activator has some of every node's.
func TestActivatorsApart(t *testing.T) {
	const concurrency = 2
	synctest.Test(t, func(t *testing.T) {
		k := knativetest.New(t, revID, concurrency, 10)
		var all []*Slots
		for a := range 10 {
			s := NewSlots(nil, nil)
			if err := s.FollowActivators(k.Endpoints(), knativetest.ActivatorIP(a)); err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
		had := 0
		for _, phase := range []struct{ activators, pods int }{
			{1, 7}, {2, 7}, {4, 30}, {10, 30}, {10, 44}, {4, 44}, {4, 9}, {2, 9}, {1, 3}, {10, 60}, {2, 4},
		} {
			name := fmt.Sprintf("%d activators, %d pods", phase.activators, phase.pods)
			var ips []string
			node := func(i int) string { return fmt.Sprint("node-", i%3) }
			for i := range phase.pods {
				ips = append(ips, ip(i))
			}
			for _, s := range all {
				for i := range phase.pods {
					s.SetPod(revID, readyPod(i, node(i)))
				}
				for i := phase.pods; i < had; i++ {
					s.RemovePod(revID, readyPod(i, "").Name)
				}
			}
			had = phase.pods
			k.Activators(t, phase.activators)
			k.Scale(t, ips...)
			synctest.Wait()

			var mu sync.Mutex
			var running sync.WaitGroup
			release := make(chan struct{})
			owner, inPod := map[string]int{}, map[string]int{}
			for a := range phase.activators {
				for range concurrency * ofKnative(phase.pods, a, phase.activators) {
					running.Go(func() {
						k.Throttlers[a].Try(t.Context(), revID, func(dest string, _ bool) error {
							c := all[a].Of(revID, concurrency).Take(dest, Ask{Policy: Hash, Now: now})
							defer c.Release()
							mu.Lock()
							if other, taken := owner[c.Dest]; taken && other != a {
								t.Errorf("%s: %s is of activators %d and %d", name, c.Dest, other, a)
							}
							owner[c.Dest] = a
							inPod[c.Dest]++
							mu.Unlock()
							<-release
							return nil
						})
					})
				}
			}
			synctest.Wait()
			if len(inPod) != phase.pods {
				t.Errorf("%s: %d pods have requests", name, len(inPod))
			}
			for d, n := range inPod {
				if n != concurrency {
					t.Errorf("%s: %s has %d requests, want %d", name, d, n, concurrency)
				}
			}
			of := map[string]map[int]bool{}
			for i := range phase.pods {
				if of[node(i)] == nil {
					of[node(i)] = map[int]bool{}
				}
				of[node(i)][owner[dest(i)]] = true
			}
			for n, owners := range of {
				if want := min(phase.activators, phase.pods/3); len(owners) < want {
					t.Errorf("%s: %s has pods of %d activators, want %d", name, n, len(owners), want)
				}
			}
			close(release)
			running.Wait()
		}
	})
}
