package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	knativequeue "knative.dev/serving/pkg/queue"
)

// busy takes all slots, with requests of which nothing is known, until free is called.
func busy(t *testing.T, s stock, throttler activatorhandler.Throttler) (free func()) {
	t.Helper()
	release := make(chan struct{})
	var all sync.WaitGroup
	for range s.Capacity() {
		all.Go(func() {
			if err := throttler.Try(predictedAs(context.Background(), 0), revID, func(string, bool) error {
				<-release
				return nil
			}); err != nil {
				t.Error("Try() =", err)
			}
		})
	}
	synctest.Wait()
	return func() {
		close(release)
		all.Wait()
	}
}

func TestWhoGoesFirst(t *testing.T) {
	second := func(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }
	for _, tc := range []struct {
		name string
		// requests come one second apart.
		requests []Request
		want     []int
	}{
		{"the shortest", []Request{{Predicted: second(3)}, {Predicted: second(1)}, {Predicted: second(2)}}, []int{1, 2, 0}},
		{"as they came, when alike", []Request{{Predicted: second(1)}, {Predicted: second(1)}, {Predicted: second(1)}}, []int{0, 1, 2}},
		{"a second of waiting is worth 20 ms", []Request{{Predicted: second(1)}, {Predicted: second(.981)}, {Predicted: second(.959)}}, []int{2, 0, 1}},
		{"as they came, when nothing is known", []Request{{}, {}, {}}, []int{0, 1, 2}},
		{"one of which nothing is known is as those of which something is",
			[]Request{{Predicted: second(4)}, {}, {Predicted: second(3)}, {Predicted: second(5)}}, []int{2, 0, 1, 3}},
		{"none is passed for more than a quarter of its time-out",
			[]Request{{Predicted: second(9), Timeout: second(6)}, {Predicted: second(.001)}, {Predicted: second(.001)}}, []int{1, 0, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStock(1, 100)
				throttler := ordered(t, s)
				free := busy(t, s, throttler)
				var got []int
				var all sync.WaitGroup
				for i, req := range tc.requests {
					req.Order = ShortestFirst
					all.Go(func() {
						if err := throttler.Try(as(context.Background(), req), revID, func(string, bool) error {
							got = append(got, i)
							time.Sleep(time.Microsecond)
							return nil
						}); err != nil {
							t.Error("Try() =", err)
						}
					})
					time.Sleep(time.Second)
				}
				free()
				all.Wait()
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Error("The order (-want, +got):\n" + diff)
				}
			})
		})
	}
}

// A request that finds a slot just freed gets it only if it goes before all that wait.
func TestWhoFindsASlotGoesFirst(t *testing.T) {
	for _, tc := range []struct {
		name      string
		predicted time.Duration
		want      []string
	}{
		{"a longer one does not", 4 * time.Second, []string{"waits", "comes"}},
		{"nor one alike", 3 * time.Second, []string{"waits", "comes"}},
		{"a shorter one does", 2 * time.Second, []string{"comes", "waits"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStock(1, 10)
				throttler := ordered(t, failing{s, func(ctx context.Context) error {
					if ctx.Err() == nil { // a seeker, which is slow to see the slot
						time.Sleep(10 * time.Second)
					}
					return nil
				}})
				free := busy(t, s, throttler)
				var got []string
				var all sync.WaitGroup
				send := func(name string, predicted time.Duration) {
					all.Go(func() {
						if err := throttler.Try(predictedAs(context.Background(), predicted), revID, func(string, bool) error {
							got = append(got, name)
							time.Sleep(time.Second)
							return nil
						}); err != nil {
							t.Error("Try() =", err)
						}
					})
					synctest.Wait()
				}
				send("waits", 3*time.Second)
				free()
				send("comes", tc.predicted)
				all.Wait()
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Error("The order (-want, +got):\n" + diff)
				}
				if n := s.InFlight(); n != 0 {
					t.Errorf("%d are left in the breaker", n)
				}
			})
		})
	}
}

// A long request goes before those that come long after it, however many there are.
func TestAgeingBoundsTheWait(t *testing.T) {
	const long, short, lasts = time.Second, 10 * time.Millisecond, 10 * time.Millisecond
	for _, concurrency := range []int{1, 10} {
		t.Run(fmt.Sprint("concurrency ", concurrency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				throttler := ordered(t, newStock(concurrency, 1<<20))
				var all sync.WaitGroup
				send := func(predicted time.Duration, sent func()) {
					all.Go(func() {
						if err := throttler.Try(predictedAs(context.Background(), predicted), revID, func(string, bool) error {
							sent()
							time.Sleep(lasts)
							return nil
						}); err != nil {
							t.Error("Try() =", err)
						}
					})
				}
				// As many as there are slots, so that the number that wait does not fall.
				var ended atomic.Bool
				for range 2 * concurrency {
					send(short, func() {})
				}
				synctest.Wait() // or the long one may find a free slot
				start := time.Now()
				var waited time.Duration
				send(long, func() { waited = time.Since(start); ended.Store(true) })
				for !ended.Load() && time.Since(start) < time.Minute {
					for range concurrency {
						send(short, func() {})
					}
					time.Sleep(lasts)
				}
				all.Wait()
				// 1 s of predicted time is worth 50 s; those that came just within them, too.
				if least, most := 45*time.Second, 50*time.Second+4*lasts; waited < least || waited > most {
					t.Errorf("the long request waited for %v, want %v to %v", waited, least, most)
				}
			})
		})
	}
}

// No slot is ever free when nobody has scaled the revision up.
func TestColdStart(t *testing.T) {
	for _, concurrency := range []int{1, 10} {
		t.Run(fmt.Sprint("concurrency ", concurrency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStock(concurrency, 100)
				s.UpdateConcurrency(0)
				throttler := ordered(t, s)
				var mu sync.Mutex
				var got []int
				var all sync.WaitGroup
				for i := range 20 {
					all.Go(func() {
						if err := throttler.Try(predictedAs(context.Background(), time.Duration(20-i)*time.Second), revID, func(string, bool) error {
							mu.Lock()
							got = append(got, i)
							mu.Unlock()
							time.Sleep(time.Millisecond)
							return nil
						}); err != nil {
							t.Error("Try() =", err)
						}
					})
				}
				time.Sleep(time.Second)
				if len(got) > 0 {
					t.Fatalf("%v were sent before there was a pod", got)
				}
				s.UpdateConcurrency(concurrency)
				all.Wait()
				// Those that are sent at the same time are in any order.
				for batch := range slices.Chunk(got, concurrency) {
					slices.Sort(batch)
					slices.Reverse(batch)
				}
				want := make([]int, 20)
				for i := range want {
					want[i] = 19 - i
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error("The order (-want, +got):\n" + diff)
				}
			})
		})
	}
}

func TestRefusals(t *testing.T) {
	deleted := errors.New("revision not found")
	for _, tc := range []struct {
		name string
		// leave makes the context of the second of two requests; the first has the slot.
		// refused is what Knative's throttler answers to all that come.
		leave   func(context.Context) (context.Context, context.CancelFunc)
		refused error
		want    error
		after   time.Duration
	}{
		{name: "the client leaves", want: context.Canceled, after: time.Second,
			leave: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(time.Second, cancel)
				return ctx, cancel
			}},
		{name: "the deadline passes", want: context.DeadlineExceeded, after: time.Second,
			leave: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, time.Second)
			}},
		{name: "the client has left", want: context.Canceled,
			leave: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return ctx, cancel
			}},
		{name: "the revision is deleted", want: deleted, refused: deleted},
		{name: "the queue is full", want: knativequeue.ErrRequestQueueFull, refused: knativequeue.ErrRequestQueueFull},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStock(1, 1)
				refusing := &refuser{Throttler: s}
				throttler := ordered(t, refusing)
				free := busy(t, s, throttler)
				ctx := predictedAs(context.Background(), time.Second)
				if tc.leave != nil {
					var cancel context.CancelFunc
					ctx, cancel = tc.leave(ctx)
					defer cancel()
				}
				refusing.err = tc.refused
				start := time.Now()
				if err := throttler.Try(ctx, revID, func(string, bool) error {
					t.Error("it was sent")
					return nil
				}); err != tc.want {
					t.Errorf("Try() = %v, want %v", err, tc.want)
				}
				if after := time.Since(start); after != tc.after {
					t.Errorf("Try() returned after %v, want %v", after, tc.after)
				}
				if got := s.InFlight(); got != 1 {
					t.Errorf("%d are in Knative's queue, want the one that has the slot", got)
				}
				free()
			})
		})
	}
}

// refuser refuses all requests once err is set.
type refuser struct {
	activatorhandler.Throttler
	err error
}

func (r *refuser) Try(ctx context.Context, revID types.NamespacedName, fn func(string, bool) error) error {
	if r.err != nil {
		return r.err
	}
	return r.Throttler.Try(ctx, revID, fn)
}

// A seeker that is refused takes one waiting request with it, and no other.
func TestSeekerIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStock(1, 10)
		broken := errors.New("the revision is gone")
		throttler := ordered(t, failing{s, func(ctx context.Context) error {
			if ctx.Err() != nil { // an attempt
				return nil
			}
			select {
			case <-time.After(time.Second):
				return broken
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
		free := busy(t, s, throttler)
		start := time.Now()
		if err := throttler.Try(predictedAs(context.Background(), time.Second), revID, func(string, bool) error { return nil }); err != broken {
			t.Errorf("Try() = %v, want %v", err, broken)
		}
		if after := time.Since(start); after != time.Second {
			t.Errorf("Try() returned after %v, want 1s", after)
		}
		free()
	})
}

type failing struct {
	activatorhandler.Throttler
	fail func(ctx context.Context) error
}

func (f failing) Try(ctx context.Context, revID types.NamespacedName, fn func(string, bool) error) error {
	if err := f.fail(ctx); err != nil {
		return err
	}
	return f.Throttler.Try(ctx, revID, fn)
}

// A panic in a slot comes out in the goroutine of its request, with the same value, and the
// slot is free by then.
func TestPanics(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprint("waits: ", waits), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStock(1, 10)
				throttler := ordered(t, s)
				if waits {
					free := busy(t, s, throttler)
					time.AfterFunc(time.Second, free)
				}
				defer func() {
					if p := recover(); p != http.ErrAbortHandler {
						t.Errorf("the panic is %v, want http.ErrAbortHandler", p)
					}
					if got := s.InFlight(); got != 0 {
						t.Errorf("%d are in Knative's queue, want none", got)
					}
				}()
				throttler.Try(predictedAs(context.Background(), time.Second), revID, func(string, bool) error {
					panic(http.ErrAbortHandler)
				})
				t.Error("Try() did not panic")
			})
		})
	}
}

// A panic of Knative's throttler does not end the activator.
func TestThrottlerPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttler := ordered(t, failing{newStock(1, 1), func(ctx context.Context) error {
			if ctx.Err() == nil {
				panic("no trackers")
			}
			return ctx.Err()
		}})
		defer func() {
			if p, _ := recover().(string); !strings.HasPrefix(p, "no trackers") || !strings.Contains(p, "goroutine") {
				t.Errorf("the panic is %q, want that of the throttler and where it was", p)
			}
		}()
		throttler.Try(predictedAs(context.Background(), time.Second), revID, func(string, bool) error { return nil })
		t.Error("Try() did not panic")
	})
}

// again is a throttler that tries another pod after an error.
type again struct{ stock }

func (a again) Try(ctx context.Context, revID types.NamespacedName, fn func(string, bool) error) error {
	var err error
	for _, pod := range []string{"10.0.0.1:8012", "10.0.0.2:8012"} {
		if err = a.stock.Try(ctx, revID, func(string, bool) error { return fn(pod, false) }); err == nil {
			break
		}
	}
	return err
}

// A throttler that tries again does so for the request that it gave the slot.
func TestThrottlerTriesAgain(t *testing.T) {
	unreachable := errors.New("unreachable")
	for _, tc := range []struct {
		name   string
		second error
		panics bool
		want   []string
	}{
		{name: "and succeeds", want: []string{"10.0.0.1:8012", "10.0.0.2:8012"}},
		{name: "and fails", second: unreachable, want: []string{"10.0.0.1:8012", "10.0.0.2:8012"}},
		{name: "after a panic", panics: true, want: []string{"10.0.0.1:8012"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStock(1, 10)
				throttler := ordered(t, again{s})
				time.AfterFunc(time.Second, busy(t, s, throttler))
				var got []string
				func() {
					defer func() { recover() }()
					if err := throttler.Try(predictedAs(context.Background(), time.Second), revID, func(dest string, _ bool) error {
						got = append(got, dest)
						if tc.panics {
							panic(http.ErrAbortHandler)
						}
						if len(got) == 1 {
							return unreachable
						}
						return tc.second
					}); err != tc.second {
						t.Errorf("Try() = %v, want %v", err, tc.second)
					}
				}()
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Error("Sent to (-want, +got):\n" + diff)
				}
			})
		})
	}
}

// A request that the order is not for goes to Knative's throttler as it came.
func TestStockAndFIFOAreUntouched(t *testing.T) {
	for _, order := range []Order{Stock, FIFO} {
		synctest.Test(t, func(t *testing.T) {
			ctx := as(context.Background(), Request{Order: order, Predicted: time.Second})
			own := errors.New("own")
			seen := failing{newStock(1, 1), func(got context.Context) error {
				if got != ctx {
					t.Error("it is called with another context")
				}
				return nil
			}}
			if err := ordered(t, seen).Try(ctx, revID, func(string, bool) error { return own }); err != own {
				t.Errorf("Try() = %v, want its own error", err)
			}
		})
	}
}

// The values of a request's context, such as its logger, are Knative's to use.
func TestContextsHaveTheirValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStock(1, 10)
		calls := 0
		throttler := ordered(t, failing{s, func(ctx context.Context) error {
			calls++
			if _, ok := ctx.Value(requestKey{}).(Request); !ok {
				t.Error("a call has not the values of a request")
			}
			return nil
		}})
		time.AfterFunc(time.Second, busy(t, s, throttler))
		if err := throttler.Try(predictedAs(context.Background(), time.Second), revID, func(string, bool) error { return nil }); err != nil {
			t.Error("Try() =", err)
		}
		if calls != 3 {
			t.Errorf("%d calls, want one for the first request and two for the one that waits", calls)
		}
	})
}

// Whatever happens at once, each request is sent at most once and gets its own result, and no
// more run than may.
func TestManyAtOnce(t *testing.T) {
	for _, concurrency := range []int{1, 10} {
		t.Run(fmt.Sprint("concurrency ", concurrency), func(t *testing.T) {
			const requests = 3000
			s := newStock(concurrency, 200)
			throttler := ordered(t, s)
			var running, sent, left, refused, panicked atomic.Int64
			var all sync.WaitGroup
			for i := range requests {
				random := rand.New(rand.NewPCG(uint64(concurrency), uint64(i)))
				all.Go(func() {
					time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
					ctx, cancel := context.WithCancel(predictedAs(context.Background(), time.Duration(random.IntN(50))*time.Millisecond))
					defer cancel()
					if random.IntN(3) == 0 {
						time.AfterFunc(time.Duration(random.IntN(5000))*time.Microsecond, cancel)
					}
					aborts := random.IntN(10) == 0
					own := errors.New("own")
					calls := 0
					defer func() {
						if p := recover(); p != nil {
							if p != http.ErrAbortHandler || calls != 1 || !aborts {
								t.Errorf("panic %v after %d calls", p, calls)
							}
							panicked.Add(1)
						}
					}()
					err := throttler.Try(ctx, revID, func(string, bool) error {
						calls++
						if n := running.Add(1); n > int64(concurrency) {
							t.Errorf("%d run at a time, want at most %d", n, concurrency)
						}
						time.Sleep(time.Duration(random.IntN(500)) * time.Microsecond)
						running.Add(-1)
						if aborts {
							panic(http.ErrAbortHandler)
						}
						return own
					})
					switch {
					case calls == 1 && err == own:
						sent.Add(1)
					case calls == 0 && err == context.Canceled && ctx.Err() != nil:
						left.Add(1)
					case calls == 0 && err == knativequeue.ErrRequestQueueFull:
						refused.Add(1)
					default:
						t.Errorf("Try() = %v after %d calls", err, calls)
					}
				})
			}
			all.Wait()
			if n := s.InFlight(); n != 0 {
				t.Errorf("%d are left in the breaker", n)
			}
			if n := sent.Load() + left.Load() + refused.Load() + panicked.Load(); n != requests {
				t.Errorf("%d requests have an end, want %d", n, requests)
			}
			t.Logf("%d sent, %d left, %d refused, %d panicked", sent.Load(), left.Load(), refused.Load(), panicked.Load())
		})
	}
}
