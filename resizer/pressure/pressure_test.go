package pressure

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func none(string) bool { return false }

// everything is the use of functions that have the whole node above their allocations: all waiting is due to
// them.
var everything = Functions{Above: math.MaxInt32}

func write(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func pressureText(micros string) string {
	return "some avg10=0.00 avg60=1.20 avg300=0.00 total=" + micros + "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=77\n"
}

// reader reads every 20 ms on a clock that the test moves.
type reader struct {
	*testing.T
	node *Node
	now  time.Time
}

func newReader(t *testing.T, cgroups, proc string, ours func(string) bool) *reader {
	r := &reader{T: t, node: New(cgroups, proc, ours), now: start}
	t.Cleanup(r.node.Close)
	return r
}

func (r *reader) read(after time.Duration) Reading {
	r.Helper()
	r.now = r.now.Add(after)
	reading, err := r.node.Read(r.now, everything)
	if err != nil {
		r.Fatal(err)
	}
	return reading
}

const tick = 20 * time.Millisecond

func TestPressureOfCgroups(t *testing.T) {
	const pods = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
	root := cgrouptest.Tree(t, map[string]string{
		"cgroup.controllers":                "cpu memory\n",
		pods + "a_1.slice/cpu.pressure":     pressureText("1000"),
		pods + "a_1.slice/c/cpu.max":        "max 100000\n",
		pods + "a_1.slice/cpu.max":          "max 100000\n",
		pods + "ours.slice/cpu.pressure":    pressureText("1000"),
		pods + "ours.slice/cpu.max":         "max 100000\n",
		"system.slice/x.slice/cpu.pressure": pressureText("1000"),
	})
	r := newReader(t, root, t.TempDir(), func(uid string) bool { return uid == "ours" })

	if got, want := r.read(0), (Reading{Source: SourceCgroups, Pods: 1}); got != want {
		t.Fatalf("first reading is %+v, want %+v", got, want)
	}
	write(t, root, pods+"a_1.slice/cpu.pressure", pressureText("13000"))
	write(t, root, pods+"ours.slice/cpu.pressure", pressureText("90000"))
	// It waited for 12 ms, of which 1 in any 20, and 8 in a moment, are tolerated.
	if got := r.read(tick); got.Waited != 12*time.Millisecond || got.Beyond != 3*time.Millisecond {
		t.Errorf("reading is %+v, want 12ms and 3ms beyond in 20ms", got)
	}

	// Waiting before a long time without a reading says nothing about now.
	write(t, root, pods+"a_1.slice/cpu.pressure", pressureText("900000"))
	if got := r.read(time.Minute); got.Waited != 12*time.Millisecond {
		t.Errorf("reading after a minute is %+v, want what it was", got)
	}

	// Pods come and go.
	write(t, root, pods+"b.slice/cpu.pressure", pressureText("5"))
	if err := os.RemoveAll(filepath.Join(root, pods+"a_1.slice")); err != nil {
		t.Fatal(err)
	}
	for range listEvery / tick {
		r.read(tick)
	}
	if got := r.read(0); got.Pods != 1 || r.node.pods[filepath.Join(root, pods+"b.slice")] == nil {
		t.Errorf("%d pods after one went and one came, want the one that came", got.Pods)
	}
}

// Where the kernel keeps no pressure for one cgroup (cgroup.pressure is 0), its threads are read, and for
// the others their pressure.
func TestNoPressureOfOneCgroup(t *testing.T) {
	const pods = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
	root := cgrouptest.Tree(t, map[string]string{
		"cgroup.controllers":              "cpu memory\n",
		pods + "a.slice/cpu.pressure":     pressureText("1000"),
		pods + "a.slice/cpu.max":          "max 100000\n",
		pods + "b.slice/cpu.stat":         "usage_usec 1000\n",
		pods + "b.slice/cpu.max":          "max 100000\n",
		pods + "b.slice/c/cgroup.threads": "7\n",
		pods + "b.slice/c/cpu.max":        "max 100000\n",
	})
	proc := cgrouptest.Tree(t, map[string]string{"7/schedstat": "100 1000000 3\n"})
	r := newReader(t, root, proc, none)
	if got, want := r.read(0), (Reading{Source: SourceCgroups, Pods: 2}); got != want {
		t.Fatalf("first reading is %+v, want %+v", got, want)
	}
	write(t, root, pods+"a.slice/cpu.pressure", pressureText("13000"))
	write(t, root, pods+"b.slice/cpu.stat", "usage_usec 2000\n")
	write(t, proc, "7/schedstat", "100 6000000 3\n")
	if got := r.read(tick).Waited; got != 17*time.Millisecond {
		t.Errorf("they waited for %v, want 12ms of the one and 5ms of the other's thread", got)
	}
}

// Pods that rest are read in turn. None of their waiting is lost by that, and a pod that waits is read each
// time.
func TestRestingPodsAreReadInTurn(t *testing.T) {
	const parent = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
	root := cgrouptest.Tree(t, map[string]string{
		"cgroup.controllers":            "cpu memory\n",
		parent + "a.slice/cpu.max":      "max 100000\n",
		parent + "a.slice/cpu.pressure": pressureText("0"),
	})
	r := newReader(t, root, t.TempDir(), none)
	total := 0
	waits := func(d time.Duration) {
		total += int(d.Microseconds())
		write(t, root, parent+"a.slice/cpu.pressure", pressureText(strconv.Itoa(total)))
	}
	r.read(0)
	for range restTime/tick + 5 {
		r.read(tick)
	}
	before := r.node.total
	waits(60 * time.Millisecond)
	reads := 1
	for r.read(tick).Waited == before.Waited {
		if reads++; reads > 2*restEach {
			t.Fatal("a pod that rested is not seen to wait")
		}
	}
	if reads > restEach {
		t.Errorf("a pod that rested is seen to wait after %d readings, want %d at most", reads, restEach)
	}
	// One in 20 of the time in which it was not read, and 8 ms in a moment, are tolerated.
	unread := restEach * tick
	want := 60*time.Millisecond - unread/20 - toleratedAtOnce
	if waited, beyond := r.node.total.Waited-before.Waited, r.node.total.Beyond-before.Beyond; waited != 60*time.Millisecond || beyond != want {
		t.Errorf("it waited %v, %v beyond, want 60ms and %v", waited, beyond, want)
	}
	for i := range 2 * restEach {
		before := r.node.total.Waited
		waits(5 * time.Millisecond)
		if got := r.read(tick).Waited - before; got != 5*time.Millisecond {
			t.Errorf("in reading %d after it waited it is seen to have waited %v, want 5ms", i, got)
		}
	}
}

// A pod's pressure includes throttling by its own limit.
func TestOwnLimit(t *testing.T) {
	const pod = "kubepods/podx"
	root := cgrouptest.Tree(t, map[string]string{
		"cgroup.controllers":    "cpu memory\n",
		pod + "/cpu.pressure":   pressureText("0"),
		pod + "/cpu.max":        "max 100000\n",
		pod + "/c/cpu.max":      "20000 100000\n",
		pod + "/c/cpu.stat":     "usage_usec 5\nnr_throttled 3\nthrottled_usec 0\n",
		pod + "/pause/cpu.max":  "max 100000\n",
		pod + "/pause/cpu.stat": "throttled_usec 0\n",
	})
	r := newReader(t, root, t.TempDir(), none)
	r.read(0)
	var total, throttled int
	for i := range 100 {
		if i%5 > 0 {
			total += 20_000 // it runs for 20 ms and is then held up for 80
		} else if i > 0 {
			throttled += 80_000
		}
		write(t, root, pod+"/cpu.pressure", pressureText(strconv.Itoa(total)))
		write(t, root, pod+"/c/cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec "+strconv.Itoa(throttled)+"\n")
		r.read(tick)
	}
	if got := r.read(0).Waited; got > 0 {
		t.Errorf("a pod that was held up by its own limit alone is said to have waited for %v", got)
	}
	for range 50 {
		total += 10_000
		write(t, root, pod+"/cpu.pressure", pressureText(strconv.Itoa(total)))
		r.read(tick)
	}
	// The last of its waiting may be due to its own limit.
	if got := r.read(0).Waited; got < 200*time.Millisecond || got > 500*time.Millisecond {
		t.Errorf("a pod with a limit that waits half of the time for others waited %v in a second, want at least 200ms and at most 500ms", got)
	}
}

func TestThreads(t *testing.T) {
	cgroups := map[string]string{}
	for _, pod := range []string{"burstable/poda", "besteffort/podb"} {
		dir := "/kubelet/kubepods/" + pod
		cgroups["cpu"+dir+"/tasks"] = ""
		cgroups["cpu"+dir+"/cpu.cfs_quota_us"] = "-1\n"
		cgroups["cpu"+dir+"/c/tasks"] = "7\n8\n"
		cgroups["cpu"+dir+"/c/cpu.cfs_quota_us"] = "-1\n"
		cgroups["cpuacct"+dir+"/cpuacct.usage"] = "1000\n"
	}
	cgroups["cpu/kubelet/kubepods/besteffort/podb/c/tasks"] = "9\n"
	root := cgrouptest.Tree(t, cgroups)
	proc := cgrouptest.Tree(t, map[string]string{
		"7/schedstat":  "100 1000000 3\n",
		"8/schedstat":  "100 2000000 3\n",
		"9/schedstat":  "100 5000000 3\n",
		"pressure/cpu": pressureText("0"),
	})
	r := newReader(t, root, proc, none)
	if got, want := r.read(0), (Reading{Source: SourceThreads, Pods: 2}); got != want {
		t.Fatalf("first reading is %+v, want %+v", got, want)
	}
	waits := func(nodeMicros string) Reading {
		t.Helper()
		write(t, proc, "7/schedstat", "100 6000000 3\n")
		write(t, proc, "8/schedstat", "100 12000000 3\n")
		write(t, proc, "pressure/cpu", pressureText(nodeMicros))
		return r.read(tick)
	}
	if got := waits("1"); got.Waited != 0 {
		t.Errorf("threads were read while nobody waited on the node: %+v", got)
	}
	write(t, proc, "7/stat", "7 (a) R 1) S 5 R 1")
	write(t, proc, "8/stat", "8 (b) S 1")
	if got := waits("9000"); got.Waited != 0 {
		t.Errorf("a pod that rests is said to have waited: %+v", got)
	}
	write(t, root, "cpuacct/kubelet/kubepods/burstable/poda/cpuacct.usage", "2000\n")
	// 5 and 10 ms, after the 20 ms in which nothing had to be read.
	if got := waits("19000"); got.Waited != 15*time.Millisecond || got.Beyond != 6*time.Millisecond {
		t.Errorf("reading is %+v, want 15ms, 6ms of it beyond", got)
	}

	// A thread that is ready and does not run waits, and the kernel counts that later.
	write(t, proc, "8/stat", "8 (b) S 1) R 1")
	if got := waits("29000"); got.Waited != 35*time.Millisecond {
		t.Errorf("reading is %+v after a pod was ready for 20ms, want 35ms in all", got)
	}
	write(t, root, "cpuacct/kubelet/kubepods/burstable/poda/cpuacct.usage", "2500\n")
	write(t, proc, "8/schedstat", "100 40000000 3\n")
	write(t, proc, "pressure/cpu", pressureText("39000"))
	if got := r.read(tick); got.Waited != 43*time.Millisecond {
		t.Errorf("reading is %+v after the kernel has counted 28ms, want 8ms more", got)
	}

	// A thread ends, another begins.
	if err := os.RemoveAll(filepath.Join(proc, "7")); err != nil {
		t.Fatal(err)
	}
	write(t, root, "cpu/kubelet/kubepods/burstable/poda/c/tasks", "8\n10\n")
	write(t, proc, "10/schedstat", "100 800000000 3\n")
	for i := range int(listEvery/tick) + 1 {
		write(t, root, "cpuacct/kubelet/kubepods/burstable/poda/cpuacct.usage", strconv.Itoa(3000+i)+"\n")
		write(t, proc, "pressure/cpu", pressureText(strconv.Itoa(1_000_000*(i+1))))
		r.read(tick)
	}
	if got := r.read(tick); got.Waited != 43*time.Millisecond {
		t.Errorf("what a thread had waited before it was seen was counted: %+v", got)
	}
	if got := len(r.node.pods[filepath.Join(root, "cpu/kubelet/kubepods/burstable/poda")].threads); got != 2 {
		t.Errorf("%d threads are followed, want 2", got)
	}
}

// Whatever begins in a pod is found at the next listing while the pod is young or when nobody has looked for
// long. Later it is found within a few listings, each of which follows as many pods.
func TestKnownPodsAreFollowedInTurn(t *testing.T) {
	const pods = 2 * followEach
	tree := map[string]string{}
	for i := range pods {
		tree[fmt.Sprintf("cpu/kubepods/pod%d/cpu.cfs_quota_us", i)] = "-1\n"
		tree[fmt.Sprintf("cpuacct/kubepods/pod%d/cpuacct.usage", i)] = "1000\n"
	}
	root := cgrouptest.Tree(t, tree)
	proc := cgrouptest.Tree(t, map[string]string{"pressure/cpu": pressureText("0")})
	r := newReader(t, root, proc, none)
	r.read(0)
	containers := 0
	start := func() {
		containers++
		for i := range pods {
			write(t, root, fmt.Sprintf("cpu/kubepods/pod%d/%d/cpu.cfs_quota_us", i, containers), "-1\n")
		}
	}
	// known returns in how many pods the latest container has been found.
	known := func() int {
		n := 0
		for _, p := range r.node.pods {
			if len(p.dirs) == 1+containers {
				n++
			}
		}
		return n
	}
	pass := func(d time.Duration) {
		for range d / (listEvery / 5) {
			r.read(listEvery / 5)
		}
	}

	start()
	pass(listEvery)
	if got := known(); got != pods {
		t.Errorf("what began in young pods is known of %d in the next listing, want all %d", got, pods)
	}
	pass(youngTime)
	start()
	for i := range followEach {
		pass(listEvery)
		if got, want := known(), (i+1)*pods/followEach; got != want {
			t.Errorf("what began in old pods is known of %d after %d listings, want %d of %d", got, i+1, want, pods)
		}
	}
	start()
	r.read(followEach * listEvery)
	if got := known(); got != pods {
		t.Errorf("what began while nobody looked is known of %d, want all %d", got, pods)
	}
}

// An agent that does not see the host's processes reads the node's pressure, and one without that says so.
func TestNobodySeen(t *testing.T) {
	const dir = "/kubepods/poda"
	root := cgrouptest.Tree(t, map[string]string{
		"cpu" + dir + "/tasks":             "",
		"cpu" + dir + "/cpu.cfs_quota_us":  "-1\n",
		"cpuacct" + dir + "/cpuacct.usage": "1000\n",
	})
	proc := cgrouptest.Tree(t, map[string]string{"pressure/cpu": pressureText("0")})
	r := newReader(t, root, proc, none)
	r.read(0)
	write(t, proc, "pressure/cpu", pressureText("12000"))
	if got, want := r.read(tick), (Reading{Waited: 12 * time.Millisecond, Beyond: 3 * time.Millisecond, Source: SourceNode, Pods: 1}); got != want {
		t.Errorf("reading is %+v, want %+v", got, want)
	}
	before := r.read(tick)
	write(t, proc, "pressure/cpu", pressureText("900000"))
	if got := r.read(time.Minute); got != before {
		t.Errorf("after a minute without a reading it is %+v, want %+v: nobody knows when in that minute there was waiting", got, before)
	}

	blind := New(root, t.TempDir(), none)
	if _, err := blind.Read(start, everything); err == nil || !strings.Contains(err.Error(), "pressure/cpu") {
		t.Errorf("reading without anything to read: %v, want an error that names what is missing", err)
	}
	if got, err := New(root, t.TempDir(), func(string) bool { return true }).Read(start, everything); err != nil || got.Pods != 0 {
		t.Errorf("reading a node without bystanders: %+v, %v", got, err)
	}
}

// A pod that waits no more than is tolerated is never in want, and one that waits for good is at once,
// however its waiting falls on the readings.
func TestPatience(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p patience
		cpus := int64(rapid.IntRange(1, 256).Draw(t, "CPUs"))
		functions := Functions{Above: rapid.Float64Range(0, 2*float64(cpus)).Draw(t, "above")}
		var waited, passed, beyond time.Duration
		for range rapid.IntRange(1, 200).Draw(t, "readings") {
			d := time.Duration(rapid.IntRange(1, 100).Draw(t, "ms")) * time.Millisecond
			w := time.Duration(rapid.Float64Range(0, 1).Draw(t, "share") * float64(d))
			more := p.beyond(w, d, functions, cpus)
			if more < 0 || more > w {
				t.Fatalf("%v of %v is beyond", more, w)
			}
			waited, passed, beyond = waited+w, passed+d, beyond+more
			blamed := time.Duration(min(1, functions.Above/float64(cpus)) * float64(waited))
			if left := blamed - time.Duration(tolerated*float64(passed)) - toleratedAtOnce; beyond < left-time.Microsecond {
				t.Fatalf("of %v waited in %v, %v is beyond, want at least %v", waited, passed, beyond, left)
			}
			if beyond > blamed+time.Microsecond {
				t.Fatalf("of %v waited in %v, %v is beyond, of which functions can have done %v", waited, passed, beyond, blamed)
			}
		}
	})
	var p patience
	for range 1000 {
		if p.beyond(900*time.Microsecond, tick, everything, 2) > 0 {
			t.Fatal("waiting for less than the tolerated share was too much")
		}
	}
}

// On a full node everything waits, with Libra or without it: functions that use a tenth of it above their
// allocations are not held for that.
func TestPatienceOnAFullNode(t *testing.T) {
	var p patience
	for range 1000 {
		if p.beyond(tick*2/5, tick, Functions{Above: 0.2}, 2) > 0 {
			t.Fatal("waiting 0.4 of the time, of which functions can have done a tenth, was too much")
		}
	}
	var beyond time.Duration
	for range 50 {
		beyond += p.beyond(tick*2/5, tick, Functions{Above: 1.5}, 2)
	}
	if beyond < 200*time.Millisecond {
		t.Errorf("of 0.4 s waited in a second, %v is too much when functions use three quarters of the node above their own", beyond)
	}
}

// The waiting of a pod while functions are held is no reason to hold them, but more waiting is.
func TestLearnedPatience(t *testing.T) {
	var p patience
	wait := func(share float64, d time.Duration, held bool) (beyond time.Duration) {
		for i := range int(d / tick) {
			// Half of the ticks have all of it.
			waited := time.Duration(2 * share * float64(tick))
			beyond += p.beyond(waited*time.Duration(i%2), tick, Functions{Held: held, Above: 2}, 2)
		}
		return beyond
	}
	if got := wait(.25, time.Second, false); got < 150*time.Millisecond {
		t.Fatalf("of a quarter of a second waited, %v is too much", got)
	}
	wait(.25, time.Second, true)
	if got := wait(.25, time.Second, true); got > 0 {
		t.Errorf("a second later %v is too much, though functions are held", got)
	}
	if got := wait(.26, time.Second, false); got > 0 {
		t.Errorf("%v is too much when functions are let go and nothing changes", got)
	}
	if got := wait(.4, time.Second, false); got < 50*time.Millisecond {
		t.Errorf("%v is too much when it waits 0.4 instead of 0.25 of its time", got)
	}
	wait(0, time.Minute, false)
	if got := wait(.25, time.Second, false); got < 150*time.Millisecond {
		t.Errorf("what was learned a minute ago is not forgotten: %v is too much", got)
	}
}

// Throttling by a pod's own limit excuses waiting, whichever is reported first, but no more waiting than
// there was throttling.
func TestOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o own
		var waited, counted time.Duration
		now := start
		for range rapid.IntRange(1, 100).Draw(t, "readings") {
			now = now.Add(tick)
			w := time.Duration(rapid.IntRange(0, 20).Draw(t, "waited")) * time.Millisecond
			c := o.without(w, time.Duration(rapid.IntRange(0, 30).Draw(t, "throttled"))*time.Millisecond, now)
			waited, counted = waited+w, counted+c
			if c < 0 || counted > waited {
				t.Fatalf("%v counted of %v waited", counted, waited)
			}
		}
	})
}

func TestPodUID(t *testing.T) {
	for name, want := range map[string]string{
		"pod0a-1b": "0a-1b", "kubepods-besteffort-pod0a_1b.slice": "0a-1b", "kubepods-pod0a.slice": "0a", "kubelet-kubepods-burstable-pod0a_1b.slice": "0a-1b",
		"burstable": "", "kubepods-burstable.slice": "", "crio-pod.scope": "", "pod": "",
	} {
		if got, ok := podUID(name); ok != (want != "") || ok && got != want {
			t.Errorf("podUID(%q) = %q, %v, want %q", name, got, ok, want)
		}
	}
}

func TestUnreadable(t *testing.T) {
	for _, text := range []string{"", "some", "full avg10=0.00 total=5", "some avg10=0 total=x", "some total="} {
		if _, err := parsePressure([]byte(text)); err == nil {
			t.Errorf("parsePressure(%q) is no error", text)
		}
	}
	for _, text := range []string{"", "7", "7 (a", "7 (a R 1", "7 (a) S R 1", "7 (a)"} {
		if isReady([]byte(text)) {
			t.Errorf("isReady(%q)", text)
		}
	}
	for _, text := range []string{"", "12", "12 x 3"} {
		if _, err := parseDelay([]byte(text)); err == nil {
			t.Errorf("parseDelay(%q) is no error", text)
		}
	}
}
