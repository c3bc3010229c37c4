package pressure

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

// kernelPods makes pods' cgroups in the machine's kernel, of a node that no other test has.
type kernelPods struct{ node string }

func (k *kernelPods) container(t testing.TB, pod string) *cgrouptest.Container {
	t.Helper()
	return cgrouptest.NewIn(t, k.node, "kubepods", "burstable", "pod"+pod, pod+"-container")
}

// isFunction reports whether the test made a pod as a function, or did not make it.
func (k *kernelPods) isFunction(uid string) bool {
	return !strings.HasPrefix(uid, k.node) || strings.HasSuffix(uid, "function")
}

// wait reads for a while how long bystanders wait.
func wait(t *testing.T, n *Node, d time.Duration) Reading {
	t.Helper()
	var first, last Reading
	for i := range int(d / tick) {
		time.Sleep(tick)
		reading, err := n.Read(time.Now(), everything)
		if err != nil {
			t.Fatal(err)
		}
		if last = reading; i == 0 {
			first = reading
		}
	}
	last.Waited, last.Beyond = last.Waited-first.Waited, last.Beyond-first.Beyond
	return last
}

func TestKernelWaiting(t *testing.T) {
	k := kernelPods{cgrouptest.Name()}
	bystander := k.container(t, k.node+"-bystander")
	limited := k.container(t, k.node+"-limited")
	function := k.container(t, k.node+"-function")
	n := New(bystander.Root, "/proc", k.isFunction)
	t.Cleanup(n.Close)

	// Held up by its own limit alone, it waits for nobody.
	limited.Write("10000", limited.File("cpu.cfs_quota_us", "cpu.max"))
	load := limited.Start(t)
	load.Do("burn")
	// On a busy machine it waits for others, too.
	var got Reading
	for range 8 {
		if got = wait(t, n, 2*time.Second); got.Waited <= time.Second {
			break
		}
		t.Logf("held up by its own limit: %+v", got)
	}
	if got.Pods != 2 {
		t.Fatalf("%d bystanders are seen, want 2", got.Pods)
	}
	if want := map[bool]Source{false: SourceThreads, true: SourceCgroups}[bystander.V2]; got.Source != want {
		t.Fatalf("they are read from %s, want %s", got.Source, want)
	}
	if alone := got.Waited; alone > time.Second {
		t.Errorf("a pod that is held up by its own limit is said to have waited %v in 2s", alone)
	}
	limited.Write(map[bool]string{false: "-1", true: "max"}[limited.V2], limited.File("cpu.cfs_quota_us", "cpu.max"))

	// Beside functions that take every CPU it waits most of the time.
	little := map[bool]string{false: "50", true: "5"}[bystander.V2]
	for _, file := range []string{bystander.PodFile("cpu.shares", "cpu.weight"), limited.PodFile("cpu.shares", "cpu.weight")} {
		bystander.Write(little, file)
	}
	// Start first what has so little weight: beside functions that burn, it can take minutes to
	// begin.
	for range int(n.shared) {
		bystander.Start(t).Do("burn")
	}
	for range 2 * int(n.shared) {
		function.Start(t).Do("burn")
	}
	got = wait(t, n, 2*time.Second)
	t.Logf("beside functions that burn: %+v", got)
	if got.Waited < 200*time.Millisecond || got.Beyond < 100*time.Millisecond {
		t.Errorf("a pod with little weight is said to have waited %v in 2s, %v of it beyond, want at least 200ms and 100ms", got.Waited, got.Beyond)
	}
}

// The cost of one reading with 50 bystanders that all run now and then, on whatever this machine
// has.
func BenchmarkRead(b *testing.B) {
	k := kernelPods{cgrouptest.Name()}
	var first *cgrouptest.Container
	for i := range 50 {
		c := k.container(b, fmt.Sprintf("%s-%d", k.node, i))
		c.Start(b).Do("doze")
		if first == nil {
			first = c
		}
	}
	n := New(first.Root, "/proc", k.isFunction)
	b.Cleanup(n.Close)
	time.Sleep(time.Second)
	now := time.Now()
	read := func() Reading {
		now = now.Add(tick)
		r, err := n.Read(now, everything)
		if err != nil {
			b.Fatal(err)
		}
		return r
	}
	for range 50 { // all have run
		time.Sleep(tick)
		read()
	}
	for _, bb := range []struct {
		name   string
		before func()
	}{
		{"all-ran", func() {
			for _, p := range n.pods {
				if p.usage != nil {
					p.usage.last = 0 // as if it had run since
				}
			}
			if n.node != nil {
				n.node.last = 0
			}
			n.listedAt = now
		}},
		{"none-ran", func() {
			if n.node != nil {
				n.node.last = 0
			}
			n.listedAt = now
		}},
		{"listing", func() {
			for _, p := range n.pods {
				p.foundAt = time.Time{}
			}
			n.listedAt = now.Add(-listEvery)
		}},
		{"listing-after-a-pause", func() { n.listedAt = time.Time{} }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			var last Reading
			for b.Loop() {
				bb.before()
				last = read()
			}
			threads := 0
			for _, p := range n.pods {
				threads += len(p.threads)
			}
			b.ReportMetric(float64(last.Pods), "pods")
			b.ReportMetric(float64(threads), "threads")
		})
	}
}
