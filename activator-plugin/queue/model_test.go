package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	knativequeue "knative.dev/serving/pkg/queue"
	"pgregory.net/rapid"
)

// arrival is a request. All times are whole milliseconds.
type arrival struct {
	After     time.Duration // the one before it came
	Lasts     time.Duration
	Predicted time.Duration // 0 for unknown
	Leaves    time.Duration // after it came; 0 for never
}

// fate is what happens to a request.
type fate struct {
	Began time.Duration // since the first could come; 0 for never
	Err   string
}

// times makes no two events coincide. Each request comes at a microsecond of its own,
// which is also that of the ends of those that ran since. Requests leave between
// microseconds.
func times(requests []arrival) (came, leave []time.Duration) {
	var at time.Duration
	for i, r := range requests {
		at += r.After
		came = append(came, at+time.Duration(i+1)*time.Microsecond)
		leave = append(leave, came[i]+r.Leaves+500*time.Nanosecond)
	}
	return came, leave
}

// model says what happens to requests. A request is refused only if it finds
// concurrency + depth others. A free slot is used, and goes to the lowest key.
func model(requests []arrival, concurrency, depth int) []fate {
	type key struct {
		key time.Duration
		i   int
	}
	var (
		came, leave = times(requests)
		fates       = make([]fate, len(requests))
		waiting     []key
		running     []time.Duration // when they end
		mean        time.Duration
	)
	begin := func(i int, now time.Duration) {
		fates[i].Began = now
		running = append(running, now+requests[i].Lasts)
	}
	type happening struct {
		at    time.Duration
		i     int
		leave bool
	}
	var happenings []happening
	for i, r := range requests {
		happenings = append(happenings, happening{came[i], i, false})
		if r.Leaves > 0 {
			happenings = append(happenings, happening{leave[i], i, true})
		}
	}
	slices.SortFunc(happenings, func(a, b happening) int { return cmp.Compare(a.at, b.at) })
	endUntil := func(now time.Duration) {
		for len(running) > 0 {
			slices.Sort(running)
			if end := running[0]; end > now {
				return
			}
			end := running[0]
			running = running[1:]
			if len(waiting) > 0 {
				best := slices.MinFunc(waiting, func(a, b key) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.i, b.i)) })
				waiting = slices.DeleteFunc(waiting, func(k key) bool { return k == best })
				begin(best.i, end)
			}
		}
	}
	for _, h := range happenings {
		endUntil(h.at)
		i := h.i
		switch {
		case h.leave:
			if at := slices.IndexFunc(waiting, func(k key) bool { return k.i == i }); at >= 0 {
				waiting = slices.Delete(waiting, at, at+1)
				fates[i].Err = context.Canceled.Error()
			}
		case len(waiting)+len(running) == concurrency+depth:
			fates[i].Err = knativequeue.ErrRequestQueueFull.Error()
		default:
			predicted := cmp.Or(requests[i].Predicted, mean)
			switch p := requests[i].Predicted; {
			case p == 0:
			case mean == 0:
				mean = p
			default:
				mean += (p - mean) / 16
			}
			if len(running) < concurrency {
				begin(i, h.at)
			} else {
				waiting = append(waiting, key{predicted + came[i]/50, i})
			}
		}
	}
	endUntil(1 << 62)
	return fates
}

// run says what happens to requests with a throttler. broken lists broken invariants.
func run(t *testing.T, requests []arrival, concurrency, depth int, wrap func(stock) activatorhandler.Throttler) (fates []fate, broken []string) {
	synctest.Test(t, func(*testing.T) {
		var (
			came, leave = times(requests)
			below       = newStock(concurrency, depth)
			throttler   = wrap(below)
			start       = time.Now()
			all         sync.WaitGroup
			mu          sync.Mutex
			running     int
		)
		fates = make([]fate, len(requests))
		for i, r := range requests {
			all.Go(func() {
				time.Sleep(came[i])
				ctx, cancel := context.WithCancel(predictedAs(context.Background(), r.Predicted))
				defer cancel()
				if r.Leaves > 0 {
					defer time.AfterFunc(leave[i]-came[i], cancel).Stop()
				}
				own := errors.New("own")
				err := throttler.Try(ctx, revID, func(dest string, _ bool) error {
					mu.Lock()
					if running++; running > concurrency {
						broken = append(broken, fmt.Sprintf("%d run at a time, want at most %d", running, concurrency))
					}
					if fates[i].Began != 0 {
						broken = append(broken, fmt.Sprintf("request %d was sent twice", i))
					}
					fates[i].Began = time.Since(start)
					mu.Unlock()
					time.Sleep(r.Lasts)
					mu.Lock()
					running--
					mu.Unlock()
					return own
				})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case fates[i].Began == 0 && err != nil:
					fates[i].Err = err.Error()
					if gone := time.Since(start); r.Leaves > 0 && gone != leave[i] && gone != came[i] {
						broken = append(broken, fmt.Sprintf("request %d left at %v and was told at %v", i, leave[i], gone))
					}
				case err != own:
					broken = append(broken, fmt.Sprintf("Try() of request %d = %v, want its own error", i, err))
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if n := below.InFlight(); n != 0 {
			broken = append(broken, fmt.Sprintf("%d are left in the breaker", n))
		}
	})
	return fates, broken
}

func drawRequests(rt *rapid.T, lasts, leaves *rapid.Generator[int]) []arrival {
	milliseconds := func(i int) time.Duration { return time.Duration(i) * time.Millisecond }
	n := rapid.IntRange(1, 80).Draw(rt, "how many")
	return rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) arrival {
		return arrival{
			After:     milliseconds(rapid.IntRange(0, 30).Draw(rt, "after")),
			Lasts:     milliseconds(lasts.Draw(rt, "lasts")),
			Predicted: milliseconds(rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(0, 500)).Draw(rt, "predicted")),
			Leaves:    milliseconds(leaves.Draw(rt, "leaves")),
		}
	}), n, n).Draw(rt, "requests")
}

func drawBreaker(rt *rapid.T) (concurrency, depth int) {
	return rapid.SampledFrom([]int{1, 2, 10}).Draw(rt, "concurrency"), rapid.IntRange(1, 30).Draw(rt, "depth")
}

// Which requests are refused, leave and go first, and when, is exactly as in the model.
func TestLinesAreAsTheModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		concurrency, depth := drawBreaker(rt)
		requests := drawRequests(rt, rapid.IntRange(1, 200), rapid.OneOf(rapid.Just(0), rapid.IntRange(1, 300)))
		got, broken := run(t, requests, concurrency, depth, func(s stock) activatorhandler.Throttler {
			return ordered(t, s)
		})
		if len(broken) > 0 {
			rt.Fatal(broken)
		}
		if diff := gocmp.Diff(model(requests, concurrency, depth), got); diff != "" {
			rt.Fatal("What became of requests (-want, +got):\n" + diff)
		}
	})
}

// Where the order does not change how long requests take, as many are refused and
// admitted as without it, at the same times.
func TestAdmissionIsAsStock(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		concurrency, depth := drawBreaker(rt)
		lasts := rapid.IntRange(1, 200).Draw(rt, "lasts of all")
		requests := drawRequests(rt, rapid.Just(lasts), rapid.Just(0))
		summary := func(wrap func(stock) activatorhandler.Throttler) (began []time.Duration, refused []int) {
			fates, broken := run(t, requests, concurrency, depth, wrap)
			if len(broken) > 0 {
				rt.Fatal(broken)
			}
			for i, f := range fates {
				if f.Err != "" {
					refused = append(refused, i)
				} else {
					began = append(began, f.Began)
				}
			}
			slices.Sort(began)
			return began, refused
		}
		began, refused := summary(func(s stock) activatorhandler.Throttler { return s })
		gotBegan, gotRefused := summary(func(s stock) activatorhandler.Throttler { return ordered(t, s) })
		if diff := gocmp.Diff(began, gotBegan); diff != "" {
			rt.Error("When requests began (-stock, +ordered):\n" + diff)
		}
		if diff := gocmp.Diff(refused, gotRefused); diff != "" {
			rt.Error("Refused (-stock, +ordered):\n" + diff)
		}
	})
}
