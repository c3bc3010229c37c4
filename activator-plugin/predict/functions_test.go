package predict

import (
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

// unknown returns names of functions that the client of knowing does not know.
func unknown(functions int) []types.NamespacedName {
	names := make([]types.NamespacedName, functions)
	for i := range names {
		names[i] = types.NamespacedName{Namespace: "unknown", Name: strconv.Itoa(i)}
	}
	return names
}

// After an activator starts, every function has its first request, and all of them wait for one lock.
func TestTheFirstRequestOfAFunctionCopiesNoOthers(t *testing.T) {
	c, _ := knowing(t, 10_000)
	names, now := unknown(100), time.Now()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, name := range names {
		c.function(name, now)
	}
	runtime.ReadMemStats(&after)
	// A copy of the names alone is 320,000 bytes.
	if each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(names)); each > 8<<10 {
		t.Errorf("the first request of a function allocates %d bytes beside 10,000 functions", each)
	}
}

func TestForgottenFunctionsMakeRoomForAsMany(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, "http://localhost", clk)
	for _, namespace := range []string{"first", "second"} {
		known := 0
		for i := range maxFunctions + 1 {
			if f := c.function(types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(i)}, clk.Now()); f != nil {
				f.use(clk.Now())
				known++
			}
		}
		if known != maxFunctions {
			t.Errorf("%d functions of the namespace %s are known, want %d", known, namespace, maxFunctions)
		}
		clk.SetTime(clk.Now().Add(forgetAfter + time.Second))
	}
}

func TestAFunctionThatManyAskForAtOnceCountsOnce(t *testing.T) {
	c := newClient(t, "http://localhost", clocktesting.NewFakeClock(time.Now()))
	names, now := unknown(1000), time.Now()
	for _, name := range names {
		var asking sync.WaitGroup
		all := make(chan struct{})
		for range 8 {
			asking.Go(func() {
				<-all
				if f := c.function(name, now); f != c.find(name) {
					t.Errorf("%s is two functions", name)
				}
			})
		}
		close(all)
		asking.Wait()
	}
	if c.count != len(names) {
		t.Errorf("%d functions are counted, want %d", c.count, len(names))
	}
}

func TestAKnownFunctionIsFoundWithoutAllocating(t *testing.T) {
	c, names := knowing(t, 1000)
	now := time.Now()
	i := 0
	if n := testing.AllocsPerRun(len(names), func() { c.function(names[i%len(names)], now); i++ }); n != 0 {
		t.Errorf("finding a function allocates %v times, want 0", n)
	}
}

// BenchmarkFirstRequests makes the first request of each of several functions, one after another.
func BenchmarkFirstRequests(b *testing.B) {
	for _, functions := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(functions), func(b *testing.B) {
			names, now := unknown(functions), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				var c Client
				for _, name := range names {
					c.function(name, now)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(functions), "ns/function")
		})
	}
}
