package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/activator-plugin/knativetest"
)

// longest is how long to wait for anything that has to happen.
const longest = 20 * time.Second

func newKnative(t *testing.T, concurrency int64, activators int) *knativetest.Knative {
	t.Helper()
	k := knativetest.New(t, revID, concurrency, activators)
	if activators > 1 {
		k.Activators(t, activators)
	}
	return k
}

// From a cold start on, every request is served once, and no activator has more in a
// pod than the pod's concurrency.
func TestBeforeKnative(t *testing.T) {
	for _, tc := range []struct {
		concurrency int64
		activators  int
		pods        int
	}{
		{0, 1, 1}, {1, 1, 1}, {10, 1, 1}, {1, 1, 4}, {10, 1, 3}, {1, 2, 4}, {10, 2, 2},
	} {
		t.Run(fmt.Sprintf("concurrency %d, %d activators, %d pods", tc.concurrency, tc.activators, tc.pods), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const requests = 60
				k := newKnative(t, tc.concurrency, tc.activators)
				order := ShortestFirst
				if tc.concurrency == 0 {
					order = Stock
				}
				var (
					mu      sync.Mutex
					running = map[string]int64{}
					got     []int
					all     sync.WaitGroup
				)
				ctx, cancel := context.WithTimeout(context.Background(), longest)
				defer cancel()
				for a, next := range k.Throttlers {
					throttler := ordered(t, next)
					for i := range requests {
						all.Go(func() {
							// The last is the shortest.
							ctx := as(ctx, Request{Order: order, Predicted: time.Duration(requests-i) * time.Hour})
							if err := throttler.Try(ctx, revID, func(dest string, _ bool) error {
								mu.Lock()
								pod := fmt.Sprint(dest, " by activator ", a)
								running[pod]++
								if n := running[pod]; tc.concurrency > 0 && n > tc.concurrency {
									t.Errorf("%d are in %s, want at most %d", n, pod, tc.concurrency)
								}
								if a == 0 {
									got = append(got, i)
								}
								mu.Unlock()
								time.Sleep(time.Millisecond)
								mu.Lock()
								defer mu.Unlock()
								running[pod]--
								return nil
							}); err != nil {
								t.Errorf("Try() of request %d = %v", i, err)
							}
						})
					}
				}
				synctest.Wait()
				mu.Lock()
				if len(got) > 0 {
					t.Errorf("%v were sent before there was a pod", got)
				}
				mu.Unlock()
				var pods []string
				for i := range tc.pods {
					pods = append(pods, fmt.Sprint("10.0.0.", i+1))
				}
				k.Scale(t, pods...)
				all.Wait()

				var want []int
				for i := range requests {
					want = append(want, requests-1-i)
				}
				if tc.concurrency*int64(tc.pods) != 1 {
					slices.Sort(got)
					slices.Sort(want)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error("Sent (-want, +got):\n" + diff)
				}
			})
		})
	}
}

// Requests that wait when the last pod goes are served by the next one.
func TestScaleToZeroAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKnative(t, 1, 1)
		throttler := ordered(t, k.Throttlers[0])
		ctx, cancel := context.WithTimeout(predictedAs(context.Background(), time.Second), longest)
		defer cancel()
		inSlot, release := make(chan string), make(chan struct{})
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := throttler.Try(ctx, revID, func(dest string, _ bool) error {
					inSlot <- dest
					<-release
					return nil
				}); err != nil {
					t.Error("Try() =", err)
				}
			})
		}
		k.Scale(t, "10.0.0.1")
		got := []string{<-inSlot}
		k.Scale(t)
		synctest.Wait()
		release <- struct{}{}
		synctest.Wait()
		select {
		case dest := <-inSlot:
			t.Errorf("a request was sent to %s, which is gone", dest)
		default:
		}
		k.Scale(t, "10.0.0.2")
		for range 2 {
			got = append(got, <-inSlot)
			release <- struct{}{}
		}
		all.Wait()
		if diff := cmp.Diff([]string{"10.0.0.1:8012", "10.0.0.2:8012", "10.0.0.2:8012"}, got); diff != "" {
			t.Error("Sent to (-want, +got):\n" + diff)
		}
	})
}

// When a revision is deleted, requests that wait are told nothing, as without an order.
// Those that come later get Knative's error.
func TestRevisionIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKnative(t, 1, 1)
		throttler := ordered(t, k.Throttlers[0])
		ctx, cancel := context.WithCancel(predictedAs(context.Background(), time.Second))
		defer cancel()
		waiting := make(chan error)
		never := func(string, bool) error {
			t.Error("it was sent")
			return nil
		}
		go func() { waiting <- throttler.Try(ctx, revID, never) }()
		synctest.Wait()
		k.Delete(t)
		const want = `revision.serving.knative.dev "rev" not found`
		for deadline := time.Now().Add(longest); ; {
			soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			err := throttler.Try(soon, revID, never)
			cancel()
			if err != nil && err.Error() == want {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("Try() = %v, want %s", err, want)
			}
		}
		select {
		case err := <-waiting:
			t.Errorf("Try() of the one that waits = %v, want it to wait on", err)
		default:
		}
		cancel()
		if err := <-waiting; err != context.Canceled {
			t.Errorf("Try() of the one that waits = %v, want %v", err, context.Canceled)
		}
	})
}
