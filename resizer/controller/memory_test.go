package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/pooltest"
)

// Memory that is lent or needed is given at once, and taken back when it has not been for a while.
func TestMemoryFollowsThePool(t *testing.T) {
	tests := map[string]struct {
		pods  map[string]pool.Balance
		needs map[string]int64
		want  string
	}{
		"borrowed":                   {pods: lends(64, "p"), want: "p 500m/320Mi"},
		"needed":                     {needs: map[string]int64{"default/p": 400 << 20}, want: "p 500m/400Mi"},
		"needs less than it borrows": {pods: lends(64, "p"), needs: map[string]int64{"default/p": 300 << 20}, want: "p 500m/320Mi"},
		"needs more than it borrows": {pods: lends(64, "p"), needs: map[string]int64{"default/p": 400 << 20}, want: "p 500m/400Mi"},
		"needs less than it is owed": {needs: map[string]int64{"default/p": 1}},
		"CPU alone":                  {pods: map[string]pool.Balance{"default/p": {Borrowed: res(200, 0)}, "default/q": {Lent: res(200, 0)}}},
		"its own":                    {pods: map[string]pool.Balance{"default/p": {Lent: res(200, 64)}}},
		"another's":                  {pods: lends(64, "gone"), needs: map[string]int64{"default/gone": 1 << 30}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("p", owed), testPod("q", owed))
			h.expect()
			h.pool.pods, h.pool.needs = tc.pods, tc.needs
			var want []string
			if tc.want != "" {
				want = []string{tc.want}
			}
			h.expect(want...)
			h.kubelet()
			if got := h.follow(time.Minute); got != nil {
				t.Errorf("patches %v while nothing changes, want none", got)
			}
			h.pool.pods, h.pool.needs = nil, nil
			if got := h.follow(memoryStands); got != nil {
				t.Errorf("patches %v at once, want none", got)
			}
			if want != nil {
				want = []string{"p 500m/256Mi"}
			}
			h.expect(want...)
		})
	}
}

// Redis cannot have limits raised as far as it likes: whatever it says, a pod gets at most a quarter of the
// node beyond what it is owed.
func TestMemoryStaysWithinAQuarterOfTheNode(t *testing.T) {
	for name, says := range map[string]func(*fakePool){
		"needed":   func(p *fakePool) { p.needs = map[string]int64{"default/p": 1 << 40} },
		"borrowed": func(p *fakePool) { p.pods = lends(1<<20, "p") },
	} {
		t.Run(name, func(t *testing.T) {
			node := testNode(2000)
			node.Status.Capacity = res(2000, 1024).List()
			h := newHarness(t, testRevision(owed), node, testPod("p", owed))
			h.expect()
			says(h.pool)
			h.expect("p 500m/512Mi")
		})
	}
}

// A node whose memory is as its owners configured is left in peace.
func TestSleepsWhileNothingStands(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	if _, again := h.reconcileResult(); again != resync {
		t.Errorf("again after %v, want %v", again, resync)
	}
	h.pool.pods = lends(64, "p")
	h.expect("p 500m/320Mi")
	h.kubelet()
	if _, again := h.reconcileResult(); again != tick {
		t.Errorf("again after %v with memory that is lent, want %v", again, tick)
	}
}

// The next request finds what the last one had.
func TestMemoryThatIsLentAgain(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	for range 5 {
		h.pool.pods = lends(64, "p")
		h.follow(time.Second)
		h.pool.pods = nil
		h.follow(memoryStands - time.Second)
	}
	if got := h.total("libra.resizer.resizes"); got != 1 {
		t.Errorf("%v resizes, want 1", got)
	}
}

// Requests that follow each other need less than the one before them, and between them nothing is
// needed: the limit goes down to what each of them needs, and no further until they end.
func TestMemoryThatIsNeededAgainAndAgain(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	need := func(mi int64) { h.pool.needs = map[string]int64{"default/p": mi << 20} }
	need(400)
	h.expect("p 500m/400Mi")
	h.kubelet()
	var got []string
	for range 20 {
		h.pool.needs = nil
		got = append(got, h.follow(time.Second)...)
		need(300)
		got = append(got, h.follow(2*time.Second)...)
		h.kubelet()
	}
	if diff := cmp.Diff([]string{"p 500m/300Mi"}, got); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	h.pool.needs = nil
	if got := h.follow(memoryStands - time.Second); got != nil {
		t.Errorf("patches %v at once, want none", got)
	}
	if diff := cmp.Diff([]string{"p 500m/256Mi"}, h.follow(2*time.Second)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// most is the most that was due at any moment within memoryStands.
func TestRecent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r recent
		type held struct {
			from, until time.Time
			bytes       int64
		}
		now := time.Unix(0, 0)
		var all []held
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			bytes := rapid.Int64Range(0, 4).Draw(t, "bytes")
			r.add(now, bytes)
			if len(all) > 0 {
				all[len(all)-1].until = now
			}
			all = append(all, held{from: now, bytes: bytes})
			now = now.Add(time.Duration(rapid.Int64Range(0, 8).Draw(t, "gap")) * time.Second)
			var want int64
			for i, h := range all {
				if i == len(all)-1 || now.Sub(h.until) < memoryStands {
					want = max(want, h.bytes)
				}
			}
			got, next := r.most(now)
			if got != want {
				t.Fatalf("%v is the most of %v, want %d", got, all, want)
			}
			if later, _ := r.most(now.Add(next - 1)); later != got {
				t.Fatalf("%d is the most for %v, and before that %d", got, next, later)
			}
		}
	})
}

// A pod's need shrinks a little at a time while it runs, and the limit does not follow each step.
func TestMemoryIsLoweredInSteps(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	need := func(mi int64) { h.pool.needs = map[string]int64{"default/p": mi << 20} }
	need(400)
	h.expect("p 500m/400Mi")
	h.kubelet()
	need(400 - memoryStep>>20 + 1)
	if got := h.follow(time.Minute); got != nil {
		t.Errorf("patches %v, want none", got)
	}
	need(400 - memoryStep>>20)
	if diff := cmp.Diff([]string{"p 500m/384Mi"}, h.follow(time.Minute)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// A limit that does not come down is left, so that it does not keep the pod's CPU waiting.
func TestMemoryThatIsInUse(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", res(500, 320), byLibra))
	h.expect()
	h.clock.Step(memoryStands)
	h.expect("p 500m/256Mi")
	h.expect()
	h.clock.Step(memoryPatience + time.Millisecond)
	h.expect("p 500m/320Mi")
	h.kubelet()
	h.expect()
	if diff := cmp.Diff([]string{"LibraMemoryInUse"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	h.clock.Step(memoryRest)
	h.expect("p 500m/256Mi")

	// Memory that stays in use is tried ever more seldom.
	h.attempts = 0
	for end := h.clock.Now().Add(time.Hour); h.clock.Now().Before(end); h.clock.Step(tick) {
		h.reconcile()
		h.reasons()
		if specLimits(h.get("p")) == res(500, 320) {
			h.kubelet()
		}
	}
	if most := 2 * int(time.Hour/refusalMax+8); h.attempts > most {
		t.Errorf("%d patches in an hour, want at most %d", h.attempts, most)
	}
	h.kubelet()
	h.clock.Step(refusalMax + memoryRest)
	h.follow(refusalMax)
	if got := specLimits(h.get("p")); got != owed {
		t.Errorf("limits %v, want %v as it fits now", got, owed)
	}
}

// While nobody tells what pods use, no limit comes down below what they may use: the kubelet's own knowledge
// may be old.
func TestMemoryIsNotLoweredBlindly(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.pool.needs = map[string]int64{"default/p": 400 << 20}
	h.expect("p 500m/400Mi")
	h.kubelet()
	h.expect()
	h.pool.needs, h.pool.silent = nil, true
	if got := h.follow(memoryBlind - tick); got != nil {
		t.Errorf("patches %v, want none", got)
	}
	// An agent that has just come has yet to look.
	h.pool.silent = false
	if got := h.follow(memoryStands - tick); got != nil {
		t.Errorf("patches %v before the agent could have looked, want none", got)
	}
	h.pool.needs = map[string]int64{"default/p": 400 << 20}
	h.follow(2 * tick)
	h.pool.needs = nil
	if diff := cmp.Diff([]string{"p 500m/256Mi"}, h.follow(memoryStands+2*tick)); diff != "" {
		t.Errorf("patches when it is told of again (-want +got):\n%s", diff)
	}
}

// What an agent told last says nothing of what is in use when reading it again fails, or when the agent has died
// since.
func TestMemoryIsNotLoweredByOldNews(t *testing.T) {
	needed := func(t *testing.T) *harness {
		h := newHarness(t, testRevision(owed), testPod("p", owed))
		h.pool.needs = map[string]int64{"default/p": 400 << 20}
		h.expect("p 500m/400Mi")
		h.kubelet()
		h.expect()
		h.pool.needs = nil
		return h
	}
	none := func(t *testing.T, got []string) {
		t.Helper()
		if got != nil {
			t.Errorf("patches %v, want none", got)
		}
	}
	t.Run("a read fails", func(t *testing.T) {
		h := needed(t)
		none(t, h.follow(memoryStands-tick))
		h.pool.err = errors.New("away")
		none(t, h.follow(pool.LeaseTTL/2))
		h.pool.err = nil
		none(t, h.follow(memoryStands-tick))
		if diff := cmp.Diff([]string{"p 500m/256Mi"}, h.follow(3*tick)); diff != "" {
			t.Errorf("patches when it has been read for long enough (-want +got):\n%s", diff)
		}
	})
	t.Run("the agent has died", func(t *testing.T) {
		h := needed(t)
		none(t, h.follow(time.Second))
		none(t, h.follow(pool.LeaseTTL)) // it died at the beginning
		h.pool.silent = true
		none(t, h.follow(memoryBlind-tick))
	})
}

// A ceiling that is refused again and again does not keep memory waiting, whose own refusal is reported.
func TestMemoryDoesNotWaitForACeiling(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready))
	h.quotaOf(600)
	h.expect()
	h.reasons()
	h.pool.pods = lends(64, "p")
	h.expect("p 500m/320Mi")
	h.kubelet()
	h.forbid = forbidden
	h.pool.pods = lends(128, "p")
	h.follow(tick)
	if diff := cmp.Diff([]string{"LibraResizeRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// The kubelet looks at what is in use only when it lowers a limit that it has set.
func TestMemoryIsNotLoweredBeforeItIsInForce(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.pool.pods = lends(64, "p")
	h.expect("p 500m/320Mi")
	h.pool.pods = nil
	if got := func() (got []string) {
		for end := h.clock.Now().Add(time.Minute); h.clock.Now().Before(end); h.clock.Step(tick) {
			got = append(got, h.reconcile()...)
		}
		return got
	}(); got != nil {
		t.Errorf("patches %v, want none", got)
	}
	h.kubelet()
	h.expect("p 500m/256Mi")
}

func TestNoMemoryOfAPodThatGoesAway(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", res(500, 320), byLibra, goingAway))
	if got := h.follow(time.Minute); got != nil {
		t.Errorf("patches %v, want none", got)
	}
}

// While Redis is away, its last answer stands for a lease. The log tells when that has passed, and when Redis
// can be read again.
func TestPoolAway(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	var lines []string
	ctx := logf.IntoContext(t.Context(), funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	reconcile := func(want ...string) {
		t.Helper()
		h.patches = nil
		if _, err := h.Reconcile(ctx, requestOf("n1")); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(want, h.patches) {
			t.Errorf("patches %v, want %v", h.patches, want)
		}
	}
	h.pool.pods = lends(64, "p")
	reconcile("p 500m/320Mi")
	h.kubelet()
	reconcile()
	h.pool.err = errors.New("away")
	h.clock.Step(pool.LeaseTTL - time.Millisecond)
	reconcile()
	h.clock.Step(time.Millisecond)
	reconcile()
	h.clock.Step(memoryBlind - pool.LeaseTTL - time.Millisecond)
	reconcile()
	h.clock.Step(time.Millisecond)
	reconcile()
	h.clock.Step(memoryStands)
	reconcile("p 500m/256Mi")
	h.kubelet()
	h.clock.Step(tick)
	reconcile()
	if got := h.total("libra.resizer.pool.errors", operationKey.String("read")); got != 6 {
		t.Errorf("%v read errors, want 6", got)
	}
	if got := h.total("libra.resizer.resize.latency"); got > tick.Seconds() {
		t.Errorf("resizes took %v s, in which the outage must not count", got)
	}
	h.pool.err = nil // back with what it had
	reconcile("p 500m/320Mi")
	if len(lines) != 2 || !strings.Contains(lines[0], "for the length of a lease") || !strings.Contains(lines[1], "again") {
		t.Errorf("logged %q, want that it was lost and that it is back", lines)
	}
}

// Before the pool was read, loans may be in force that nobody knows of.
func TestPoolNeverRead(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", res(500, 320), byLibra))
	h.pool.err = errors.New("away")
	if got := h.follow(memoryBlind + memoryStands); got != nil {
		t.Errorf("patches %v, want none", got)
	}
	if diff := cmp.Diff([]string{"p 500m/256Mi"}, h.follow(2*tick)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// Whatever another process left is put right.
func TestRestoresWhatAnotherProcessLeft(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("low", res(300, 192), byLibra), testPod("high", res(700, 320), byLibra), testPod("whole", owed))
	h.expect("high 500m/320Mi", "low 500m/256Mi")
	h.kubelet()
	if diff := cmp.Diff([]string{"high 500m/256Mi"}, h.follow(time.Minute)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	// Later, because somebody wrote the spec in Libra's name.
	h.change("low", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = res(200, 256).List() })
	h.expect("low 500m/256Mi")
}

func TestRateLimits(t *testing.T) {
	objects := []client.Object{testRevision(owed)}
	var pods []string
	for i := range 30 {
		pods = append(pods, fmt.Sprintf("p%02d", i))
		objects = append(objects, testPod(pods[i], owed))
	}
	h := newHarness(t, objects...)
	h.pool.pods = lends(64, pods...)
	h.create(testPod("low", res(300, 256), byLibra))
	got, again := h.reconcileResult()
	if len(got) != testSettings.Burst || !slices.Contains(got, "low 500m/256Mi") || again != heldTick {
		t.Errorf("patches %v and again after %v, want %d with the restore among them and again after %v", got, again, testSettings.Burst, heldTick)
	}
	h.clock.Step(tick)
	if got := h.reconcile(); len(got) != 11 {
		t.Errorf("patches %v, want the 11 that were held back", got)
	}
	if got := h.total("libra.resizer.resizes", resultKey.String(resultLimited)); got != 1 {
		t.Errorf("%v rate-limited, want 1", got)
	}
}

// The whole path with the in-memory pool: an invocation that lends, one that borrows, and
// their ends.
func TestWithThePool(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	memory := pooltest.NewMemory(h.clock)
	h.pools = memory
	heartbeat := func() {
		t.Helper()
		state, err := memory.Read(t.Context(), "n1")
		if err != nil {
			t.Fatal(err)
		}
		open, err := memory.Heartbeat(t.Context(), "n1", pool.Heartbeat{Agent: "a1", Epoch: state.Epoch, Whole: true, Lendable: res(4000, 4096),
			Pods: map[string]int64{"default/donor": 0, "default/borrower": 0}, Rested: []string{"default/donor", "default/borrower"}, RestedAt: state.Now})
		if err != nil || !open {
			t.Fatalf("heartbeat: open = %v, %v", open, err)
		}
	}
	heartbeat()
	h.expect()
	begin := func(id, pod string, surplus, want api.Resources) {
		t.Helper()
		_, err := memory.Begin(t.Context(), "n1", pool.Invocation{ID: id, Function: "default/f", Pod: "default/" + pod, Domain: "default", Owner: "a",
			Predicted: res(200, 64), Duration: 10 * time.Second, Allocation: owed, Surplus: surplus, Want: want})
		if err != nil {
			t.Fatal(err)
		}
	}
	begin("1", "donor", res(200, 64), api.Resources{})
	h.expect()
	begin("2", "borrower", api.Resources{}, res(150, 64))
	h.expect("borrower 500m/320Mi")
	h.kubelet()
	if _, err := memory.End(t.Context(), "n1", pool.Ending{ID: "1", Duration: time.Second, Status: 200}); err != nil {
		t.Fatal(err)
	}
	h.expect()
	h.clock.Step(memoryStands)
	heartbeat()
	h.expect("borrower 500m/256Mi")
}

func TestForgetsANodeWithoutPods(t *testing.T) {
	pod := testPod("p", owed)
	h := newHarness(t, testRevision(owed), pod)
	h.reconcile()
	if err := h.kube.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if got := h.points("libra.resizer.node.silent"); got != 1 {
		t.Errorf("%d nodes in the metric, want 1", got)
	}
	if _, again := h.reconcileResult(); again != 0 || len(h.nodes) != 0 {
		t.Errorf("again after %v with %d nodes known, want never and none", again, len(h.nodes))
	}
	if got := h.points("libra.resizer.node.silent"); got != 0 {
		t.Errorf("%d nodes in the metric after the node was forgotten, want none", got)
	}
}

func TestRevisionComesLate(t *testing.T) {
	h := newHarness(t, testPod("low", res(300, 256), byLibra))
	if got, again := h.reconcileResult(); got != nil || again != tick {
		t.Errorf("patches %v and again after %v, want none and %v", got, again, tick)
	}
	if err := h.kube.Create(t.Context(), testRevision(owed)); err != nil {
		t.Fatal(err)
	}
	h.expect("low 500m/256Mi")
}

// A Revision that is made anew with the same name tells nothing about the pods that are left.
func TestRevisionGoneBeforeItsPods(t *testing.T) {
	for name, anew := range map[string]api.Resources{"gone": {}, "made anew": res(300, 128)} {
		t.Run(name, func(t *testing.T) {
			revision := testRevision(owed)
			h := newHarness(t, revision, testPod("p", owed))
			h.pool.pods = lends(64, "p")
			h.expect("p 500m/320Mi")
			h.kubelet()
			if err := h.kube.Delete(t.Context(), revision); err != nil {
				t.Fatal(err)
			}
			if !anew.IsZero() {
				another := testRevision(anew)
				another.UID = "another"
				if err := h.kube.Create(t.Context(), another); err != nil {
					t.Fatal(err)
				}
			}
			h.pool.pods = nil
			if diff := cmp.Diff([]string{"p 500m/256Mi"}, h.follow(2*memoryStands)); diff != "" {
				t.Errorf("patches (-want +got):\n%s", diff)
			}
		})
	}
}
