package agent

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

// An agent that does not know the node's pods tells the pool nothing: the pool would take it that
// there are none, and so would the controller.
func TestNothingIsToldBeforeThePodsAreKnown(t *testing.T) {
	g := newTestRig(t)
	g.pods.await()
	g.run("default/d", "donor", userLimits)
	heard := func() pool.State {
		t.Helper()
		g.rest(3 * time.Second)
		state, err := g.pool.Read(g.ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	if state := heard(); state.Agent != "" {
		t.Errorf("the pool hears of pods %v, and they may not be all", g.told.Pods)
	}
	g.pods.introduce()
	if state := heard(); state.Agent != "" {
		t.Errorf("the pool hears of pods %v before the reflex knows all that are known", g.told.Pods)
	}
	g.follow(g.ctx)
	g.round(g.ctx)
	state := heard()
	if _, named := g.told.Pods["default/d"]; !named || state.Agent != g.agent || !state.Open {
		t.Errorf("the pool hears of pods %v, of agent %q, and is open: %v", g.told.Pods, state.Agent, state.Open)
	}
	if diff := cmp.Diff([]string{"default/d"}, state.Unseen); diff != "" {
		t.Errorf("pods in which something of before the epoch may go on (-want +got):\n%s", diff)
	}
}

func TestIntroduction(t *testing.T) {
	for name, tc := range map[string]struct {
		pods []string // that there are
		look []string // at these, before the settings are known and after
		want time.Duration
	}{
		"no pods":                        {nil, nil, 0},
		"all pods":                       {[]string{"p"}, []string{"p"}, 0},
		"a pod nobody has looked at":     {[]string{"p", "q"}, []string{"p"}, introducePatience},
		"a pod that cannot be looked at": {[]string{"p", "lost"}, []string{"p", "lost"}, introducePatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				build := fake.NewClientBuilder()
				for _, name := range tc.pods {
					build = build.WithObjects(podNamed(name))
				}
				kube := build.Build()
				root := cgrouptest.Tree(t, cgrouptest.V2(filepath.Join("kubepods", id)))
				_, tracker, _ := newTestAgent(t, clock.RealClock{}, kube, root, nil, nil)
				lending := &fixedLending{mode: api.ModeObserve, source: api.SourceNode}
				lending.unread.Store(true)
				tracker.lending = lending
				tracker.pods.await()
				look := func() {
					for _, name := range tc.look {
						key := types.NamespacedName{Namespace: "default", Name: name}
						if _, err := tracker.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); (err != nil) != (name == "lost") {
							t.Errorf("looking at %s: %v", name, err)
						}
					}
				}
				introduced := func(after time.Duration) bool {
					time.Sleep(after)
					synctest.Wait()
					tracker.pods.claim()
					return tracker.pods.introduced()
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- tracker.introduce(ctx) }()

				look()
				if introduced(time.Hour) {
					t.Error("introduced before the settings are known")
				}
				lending.unread.Store(false)
				if introduced(introduceEvery-time.Millisecond) || len(tc.pods) > 0 && introduced(introduceEvery) {
					t.Error("introduced before pods were looked at by the settings")
				}
				look()
				if tc.want > 0 && introduced(tc.want-3*introduceEvery) {
					t.Errorf("introduced before %v are over", tc.want)
				}
				if !introduced(4 * introduceEvery) {
					t.Errorf("not introduced after %v", tc.want)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// podNamed is a pod that runs; one that is lost has no cgroup.
func podNamed(name string) *corev1.Pod {
	running := map[string]string{"lost": "none"}[name]
	if running == "" {
		running = id
	}
	pod := podRunning(running)
	pod.Name = name
	return pod
}
