package controller

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// nudgeDue is when the nudges of a silence have been made.
const nudgeDue = nudgeAfter + tick

// old makes a pod older than the controller.
func old(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(0, 0) }

// follow reconciles for d as often as the controller asks for, and after a minute ten
// times less, with a kubelet that applies all, and returns the patches.
func (h *harness) follow(d time.Duration) []string {
	h.t.Helper()
	var got []string
	start := h.clock.Now()
	for end := start.Add(d); h.clock.Now().Before(end); {
		patches, again := h.reconcileResult()
		got = append(got, patches...)
		h.kubelet()
		if h.clock.Since(start) > time.Minute {
			again *= 10
		}
		h.clock.Step(min(again, end.Sub(h.clock.Now())))
	}
	return got
}

var aNudge = []string{"p 501m/256Mi", "p 500m/256Mi"}

func TestNudge(t *testing.T) {
	tests := map[string]struct {
		change []func(*corev1.Pod)
		before string // the agent before the silence
		err    error
		during func(h *harness) // after the silence began
		want   []string
	}{
		"an agent falls silent":                {before: "a1", want: aNudge},
		"Redis falls silent":                   {before: "a1", err: errors.New("away"), want: aNudge},
		"the start, of an older pod":           {change: []func(*corev1.Pod){old}, want: aNudge},
		"the start, without Redis":             {change: []func(*corev1.Pod){old}, err: errors.New("away"), want: aNudge},
		"a pod that is younger than the start": {},
		"its container does not run":           {before: "a1", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }}},
		"left alone":                           {before: "a1", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSGuaranteed }}},
		"the agent comes back in time":         {before: "a1", during: func(h *harness) { h.pool.agent, h.pool.err = "a2", nil }},
		"an ordinary resize makes it needless": {before: "a1", during: func(h *harness) {
			h.pool.pods = map[string]pool.Balance{"default/p": {Lent: res(100, 0)}, "default/q": {Borrowed: res(100, 0)}}
		}, want: []string{"p 400m/256Mi"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("p", owed, tc.change...))
			if tc.during != nil && tc.want != nil {
				h = newHarness(t, testRevision(owed), testPod("p", owed), testPod("q", owed))
			}
			h.pool.agent = tc.before
			if tc.before != "" {
				h.expect()
			}
			h.pool.agent, h.pool.err = "", tc.err
			h.clock.Step(pool.LeaseTTL)
			h.expect()
			if tc.during != nil {
				tc.during(h)
				if tc.want != nil {
					h.clock.Step(tick)
				}
			}
			got := slices.DeleteFunc(h.follow(10*nudgeDue), func(p string) bool { return p[0] != 'p' })
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("patches (-want +got):\n%s", diff)
			}
		})
	}
}

// The second patch must not hide the first from the kubelet.
func TestNudgeWaitsForTheKubelet(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed, old))
	h.expect()
	h.clock.Step(nudgeDue)
	h.expect("p 501m/256Mi")
	for range 20 {
		h.clock.Step(tick)
		h.expect()
	}
	h.kubelet()
	h.expect("p 500m/256Mi")
	if got := h.total("libra.resizer.resizes", reasonKey.String(reasonNudge), resultKey.String(resultAccepted)); got != 2 {
		t.Errorf("%v patches of nudges, want 2", got)
	}
	if got := h.total("libra.resizer.node.silent", nodeKey.String("n1")); got != 1 {
		t.Errorf("node silent = %v, want 1", got)
	}
}

func TestNudgeOncePerSilence(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	for range 3 {
		h.pool.agent = "a1"
		h.expect()
		h.pool.agent = ""
		if diff := cmp.Diff(aNudge, h.follow(time.Hour)); diff != "" {
			t.Errorf("patches (-want +got):\n%s", diff)
		}
	}
}

func TestNudgeOfMemory(t *testing.T) {
	limits := res(0, 256)
	h := newHarness(t, testRevision(limits), testPod("p", limits, old))
	h.follow(nudgeDue)
	h.reconcile()
	if got := specLimits(h.get("p")); got != limits {
		t.Errorf("limits %v after the nudge, want %v", got, limits)
	}
	if got := h.total("libra.resizer.resizes", reasonKey.String(reasonNudge), resultKey.String(resultAccepted)); got != 2 {
		t.Errorf("%v patches of nudges, want 2", got)
	}
	for bytes, want := range map[int64]int64{256 * mi: nudgeStep, 256*mi + 1: nudgeStep - 1, 256*mi + nudgeStep - 1: 1} {
		if got := nudgeOf(api.Resources{MemoryBytes: bytes}); got != (api.Resources{MemoryBytes: want}) {
			t.Errorf("nudge of %d bytes by %d, want %d: to the next page", bytes, got.MemoryBytes, want)
		}
	}
}

// What the agent gave and did not live to take back is told to the kubelet first, so
// that it looks at what is in use before it lowers the limit.
func TestNudgeWithUnrecordedMemory(t *testing.T) {
	h := withAgent(t)
	h.pool.pods = loan(res(200, 64))
	h.expect()
	h.pool.agent, h.pool.pods = "", nil
	h.expect()
	got := slices.DeleteFunc(h.follow(10*nudgeDue), func(p string) bool { return p[0] != 'b' })
	if diff := cmp.Diff([]string{"borrower 501m/320Mi", "borrower 500m/256Mi"}, got); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// Of a limit that is lowered and raised again before the kubelet looks it sees nothing,
// and what the agent left stays: it is nudged as if neither had been.
func TestNudgeAfterResizesThatTheKubeletDidNotSee(t *testing.T) {
	h := withAgent(t)
	h.pool.pods = loan(res(200, 0))
	h.expect()
	h.pool.agent, h.pool.pods = "", map[string]pool.Balance{"default/donor": {Lent: res(200, 0)}}
	h.expect("donor 300m/256Mi")
	h.pool.pods = nil
	h.expect() // the borrower may have it
	got := slices.DeleteFunc(h.follow(waitPatience), func(p string) bool { return p[0] != 'd' })
	if diff := cmp.Diff([]string{"donor 500m/256Mi"}, got); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}

	h = newHarness(t, testRevision(owed), testPod("donor", owed, old))
	h.pool.pods = map[string]pool.Balance{"default/donor": {Lent: res(200, 0)}}
	h.expect("donor 300m/256Mi")
	h.pool.pods = nil
	h.expect("donor 500m/256Mi")
	if diff := cmp.Diff([]string{"donor 501m/256Mi", "donor 500m/256Mi"}, h.follow(2*nudgeDue)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// A donor that has waited for too long gets its own, and is tried again like any other
// when that fails.
func TestPatienceEnds(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", res(300, 256), byLibra), testPod("borrower", res(700, 256), byLibra))
	h.forbid = func(pod string) error {
		if pod == "borrower" {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod, errors.New("no"))
		}
		return nil
	}
	if got := h.follow(waitPatience); got != nil {
		t.Errorf("patches %v before its patience is over, want none", got)
	}
	h.patchErr = errors.New("away")
	h.follow(tick)
	h.patchErr = nil
	if diff := cmp.Diff([]string{"donor 500m/256Mi"}, h.follow(backOffMax)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// A controller that starts where the agent is silent goes by the balance: the agent
// may have given the memory before it.
func TestStartWhereTheAgentIsSilent(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed, old), testPod("borrower", owed, old))
	h.pool.pods = loan(res(0, 64))
	h.expect()
	got := slices.DeleteFunc(h.follow(2*nudgeDue), func(p string) bool { return p[0] != 'b' })
	if diff := cmp.Diff([]string{"borrower 501m/320Mi", "borrower 500m/320Mi"}, got); diff != "" {
		t.Errorf("patches of the nudge (-want +got):\n%s", diff)
	}
	h.pool.pods = loan(res(200, 64))
	h.expect("donor 300m/256Mi")
	h.kubelet()
	h.expect("borrower 700m/320Mi")
	h.kubelet()

	h.pool.pods = nil
	h.pool.err = errors.New("away")
	h.clock.Step(pool.LeaseTTL)
	h.expect("borrower 500m/256Mi") // the kubelet set what it lowers, so it looks at what is in use
	h.kubelet()
	h.expect("donor 500m/256Mi")
}

// What was on loan when Redis was lost is not written over either.
func TestSilentLoanIsRememberedWhenRedisIsLost(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed, old), testPod("borrower", owed, old))
	h.pool.pods = loan(res(0, 64))
	h.expect()
	h.pool.err = errors.New("away")
	h.clock.Step(pool.LeaseTTL)
	got := slices.DeleteFunc(h.follow(10*nudgeDue), func(p string) bool { return p[0] != 'b' })
	if diff := cmp.Diff([]string{"borrower 501m/320Mi", "borrower 500m/256Mi"}, got); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// A raise that was refused again and again does not keep its pod from being nudged: what
// the agent left there is its donor's.
func TestNudgeAfterRefusedRaises(t *testing.T) {
	h := withAgent(t)
	h.pool.pods = loan(res(200, 0))
	h.forbid = func(pod string) error {
		if pod == "borrower" {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod, errors.New("exceeded quota"))
		}
		return nil
	}
	h.follow(time.Minute)
	h.forbid = nil
	h.pool.agent, h.pool.pods = "", nil
	got := h.follow(2 * nudgeDue)
	i, j := slices.Index(got, "borrower 501m/256Mi"), slices.Index(got, "donor 500m/256Mi")
	if i < 0 || j < i {
		t.Errorf("patches %v, want the borrower's nudge and then the donor's own", got)
	}
}

// lapsed is a node whose agent is gone, and with it the word that a loan, which was too
// short to be recorded, had ended: the borrower may have it yet, and the donor not. The
// nudges are due.
func lapsed(t *testing.T) *harness {
	h := withAgent(t)
	h.pool.pods = loan(res(200, 0))
	h.expect()
	h.pool.agent, h.pool.pods = "", nil
	h.expect()
	h.clock.Step(nudgeDue)
	return h
}

// wait reconciles for d, with a kubelet that does nothing, and returns the patches.
func (h *harness) wait(d time.Duration) []string {
	h.t.Helper()
	var got []string
	for end := h.clock.Now().Add(d); h.clock.Now().Before(end); h.clock.Step(heldTick) {
		got = append(got, h.reconcile()...)
	}
	return got
}

// Who holds too little waits for who holds too much from when the kubelet can be told.
func TestNudgesAfterAnOutage(t *testing.T) {
	h := lapsed(t)
	h.patchErr = errors.New("away")
	if got := h.wait(10 * time.Second); got != nil {
		t.Errorf("patches %v while the API server is away, want none", got)
	}
	h.patchErr = nil
	if diff := cmp.Diff([]string{"borrower 501m/256Mi"}, h.wait(backOffMax)); diff != "" {
		t.Errorf("patches before the kubelet has lowered it (-want +got):\n%s", diff)
	}
	h.kubelet()
	h.expect("borrower 500m/256Mi", "donor 501m/256Mi")
}

// So does it when a rate limit held back who holds too much.
func TestNudgesAfterARateLimit(t *testing.T) {
	h := lapsed(t)
	limiter := h.Controller.total
	limiter.SetLimitAt(h.clock.Now(), 0)
	limiter.AllowN(h.clock.Now(), testSettings.TotalBurst)
	if got := h.wait(2 * nudgePatience); got != nil {
		t.Errorf("patches %v of nudges beyond the limit, want none", got)
	}
	limiter.SetLimitAt(h.clock.Now(), rate.Limit(testSettings.TotalResizesPerSecond))
	if diff := cmp.Diff([]string{"borrower 501m/256Mi"}, h.wait(tick)); diff != "" {
		t.Errorf("patches before the kubelet has lowered it (-want +got):\n%s", diff)
	}
}

// The same of a donor of which the spec says less than it is owed.
func TestPatienceAfterAnOutage(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", res(300, 256), byLibra), testPod("borrower", res(700, 256), byLibra))
	h.patchErr = errors.New("away")
	if got := h.wait(waitPatience + tick); got != nil {
		t.Errorf("patches %v while the API server is away, want none", got)
	}
	h.patchErr = nil
	if diff := cmp.Diff([]string{"borrower 500m/256Mi"}, h.wait(backOffMax)); diff != "" {
		t.Errorf("patches before the kubelet has lowered it (-want +got):\n%s", diff)
	}
	h.kubelet()
	h.expect("donor 500m/256Mi")
}

// An API server that answers for all pods but one does not keep these from what they are owed.
func TestOutageOfOnePodEnds(t *testing.T) {
	h := lapsed(t)
	h.forbid = func(pod string) error {
		if pod == "borrower" {
			return errors.New("away")
		}
		return nil
	}
	if got := h.wait(nudgePatience + outagePatience - nudgeDue); got != nil {
		t.Errorf("patches %v before the patience with the API server is over, want none", got)
	}
	if diff := cmp.Diff([]string{"donor 501m/256Mi"}, h.wait(nudgeDue)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

func TestRefusedNudgeIsGivenUp(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed, old))
	attempts := 0
	h.forbid = func(pod string) error {
		attempts++
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod, errors.New("exceeded quota"))
	}
	h.follow(time.Hour)
	if attempts != nudgeTriesMost {
		t.Errorf("tried %d times in an hour, want %d", attempts, nudgeTriesMost)
	}
	if got := h.reasons(); !slices.Contains(got, "LibraResizeRefused") {
		t.Errorf("events %v, want one of the refusal", got)
	}
}

// An agent that falls silent leaves loans that only the API can make and end.
func TestSilentWhileOnLoan(t *testing.T) {
	h := withAgent(t)
	h.recorded()
	h.pool.agent = ""
	h.clock.Step(tick)
	h.expect()
	h.pool.pods = loan(res(100, 64))
	h.expect("borrower 600m/320Mi")
	h.kubelet()
	h.expect("donor 400m/256Mi")
	h.kubelet()
	h.pool.pods = nil
	h.expect("borrower 500m/256Mi")
	h.kubelet()
	h.expect("donor 500m/256Mi")
	if got := h.total("libra.resizer.resizes", reasonKey.String(reasonBackstop)); got != 2 {
		t.Errorf("%v resizes as the backstop, want 2", got)
	}
}
