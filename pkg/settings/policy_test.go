package settings

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

func harvestPolicy(namespace, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "libra.dev/v1alpha1", "kind": "HarvestPolicy",
		"metadata": map[string]any{"namespace": namespace, "name": name}, "spec": spec,
	}}
}

func (c *cluster) create(namespace, name string, spec map[string]any) {
	c.Helper()
	_, err := c.objects.Resource(harvestPolicies).Namespace(namespace).Create(c.Context(), harvestPolicy(namespace, name, spec), metav1.CreateOptions{})
	c.do(err)
	synctest.Wait()
}

func (c *cluster) update(namespace string, spec map[string]any) {
	c.Helper()
	_, err := c.objects.Resource(harvestPolicies).Namespace(namespace).Update(c.Context(), harvestPolicy(namespace, "default", spec), metav1.UpdateOptions{})
	c.do(err)
	synctest.Wait()
}

func (c *cluster) expectFor(namespace string, want Settings) {
	c.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, c.live.For(namespace)); diff != "" {
		c.Errorf("For(%q) (-want, +got):\n%s", namespace, diff)
	}
}

func TestHarvestPolicyComesBeforeTheConfigMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := follow(t, configMap(map[string]string{"mode": "lend", "cpu-reserve": "1"}))
		cluster := c.live.Settings()
		c.expectFor("shop", cluster)

		c.create("shop", "default", map[string]any{
			"mode": "full", "source": "owners", "minLoan": "50ms", "maxCPU": "1500m", "minCPU": int64(1), "minMemory": "64Mi",
		})
		want := cluster
		want.Mode, want.Source, want.MinLoan = api.ModeFull, api.SourceOwners, 50*time.Millisecond
		want.Bounds = Bounds{MaxCPUMilli: 1500, Keep: api.Resources{CPUMilli: 1000, MemoryBytes: 64 << 20}}
		c.expectFor("shop", want)
		c.expectFor("other", cluster)
		c.expectSettings(cluster)

		// Only one name counts, which the API server sees to.
		c.create("other", "second", map[string]any{"mode": "full"})
		c.expectFor("other", cluster)

		// A field that is taken away is the cluster's again, and follows it.
		c.update("shop", map[string]any{"mode": "observe"})
		want = cluster
		want.Mode = api.ModeObserve
		c.expectFor("shop", want)
		c.edit(map[string]string{"mode": "full", "source": "owners"})
		synctest.Wait()
		want = c.live.Settings()
		want.Mode = api.ModeObserve
		c.expectFor("shop", want)

		c.do(c.objects.Resource(harvestPolicies).Namespace("shop").Delete(t.Context(), "default", metav1.DeleteOptions{}))
		c.expectFor("shop", c.live.Settings())
		c.expectRefused()
	})
}

func TestTheLeastMaxModeHolds(t *testing.T) {
	for _, tc := range []struct{ cluster, namespace, annotation, want api.Mode }{
		{"full", "observe", "full", "observe"},
		{"observe", "full", "full", "observe"},
		{"lend", "full", "full", "lend"},
		{"full", "lend", "full", "lend"},
		{"full", "full", "lend", "lend"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := follow(t, configMap(map[string]string{"mode": "full", "max-mode": string(tc.cluster)}))
			c.create("shop", "default", map[string]any{"maxMode": string(tc.namespace)})
			if got := c.live.For("shop").ModeOf(map[string]string{api.ModeAnnotation: string(tc.annotation)}); got != tc.want {
				t.Errorf("the cluster's is %s and the namespace's %s: a revision in %s is in %s, want %s", tc.cluster, tc.namespace, tc.annotation, got, tc.want)
			}
		})
	}
}

// A node's label, a policy, a namespace's label, the cluster's: in that order.
func TestSourceOfAPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := follow(t)
		_, err := c.client.CoreV1().Namespaces().Create(t.Context(), namespaceWith("shop", "owners"), metav1.CreateOptions{})
		c.do(err)
		_, err = c.client.CoreV1().Nodes().Create(t.Context(), nodeWith("n1", "owners"), metav1.CreateOptions{})
		c.do(err)
		c.expectSources(map[string]api.Source{"shop/n2": api.SourceOwners})
		c.create("shop", "default", map[string]any{"source": "node"})
		c.expectSources(map[string]api.Source{"shop/n2": api.SourceNode, "shop/n1": api.SourceOwners, "other/n2": api.SourceNode})
		c.update("shop", map[string]any{"mode": "full"})
		c.expectSources(map[string]api.Source{"shop/n2": api.SourceOwners})
	})
}

// An API server that does not know this version's rules lets through what they refuse. Nobody gets more by that.
func TestAPolicyThatCannotBeReadObserves(t *testing.T) {
	for field, value := range map[string]any{
		"mode": "fully", "maxMode": "none", "source": "pool", "minLoan": "2h", "maxCPU": "-1", "minCPU": "9E", "minMemory": "2Pi",
	} {
		synctest.Test(t, func(t *testing.T) {
			c := follow(t, configMap(map[string]string{"mode": "full"}))
			c.create("shop", "default", map[string]any{field: value})
			c.expectRefused("HarvestPolicy shop/default cannot be read, so that the namespace's functions are only observed: spec." + field)
			if got := c.live.For("shop").ModeOf(map[string]string{api.ModeAnnotation: "full"}); got != api.ModeObserve {
				t.Errorf("%s %v: the mode is %s, want observe", field, value, got)
			}
			c.update("shop", map[string]any{})
			if got := c.live.For("shop").ModeOf(nil); got != api.ModeFull {
				t.Errorf("corrected: the mode is %s, want full", got)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		c := follow(t)
		c.create("shop", "default", map[string]any{"maxCPU": "lots"})
		c.expectRefused("only observed")
	})
}

// A cluster whose definitions are of before has no such kind; one that forbids to read it may have a policy.
func TestPoliciesThatCannotBeRead(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want api.Mode
	}{
		"no such kind": {apierrors.NewNotFound(harvestPolicies.GroupResource(), ""), api.ModeFull},
		"forbidden":    {apierrors.NewForbidden(harvestPolicies.GroupResource(), "", nil), api.ModeObserve},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &cluster{T: t, objects: noPolicies(), client: fake.NewClientset(configMap(map[string]string{"mode": "full"}))}
				c.objects.PrependReactor("list", "harvestpolicies", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
				c.start()
				time.Sleep(time.Minute)
				if got := c.live.For("shop").ModeOf(nil); got != tc.want {
					t.Errorf("the mode is %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// Whatever a policy says, it gives no more than the cluster's max-mode, and its bounds are what it says or none.
func TestPolicyProperties(t *testing.T) {
	modes := rapid.SampledFrom([]api.Mode{"", api.ModeObserve, api.ModeLend, api.ModeFull})
	rank := map[api.Mode]int{api.ModeObserve: 0, api.ModeLend: 1, api.ModeFull: 2}
	rapid.Check(t, func(t *rapid.T) {
		s := Default
		s.Mode = rapid.SampledFrom([]api.Mode{api.ModeObserve, api.ModeLend, api.ModeFull}).Draw(t, "mode")
		s.MaxMode = rapid.SampledFrom([]api.Mode{api.ModeObserve, api.ModeLend, api.ModeFull}).Draw(t, "max-mode")
		p := policy{mode: modes.Draw(t, "policy's mode"), maxMode: modes.Draw(t, "policy's max mode")}
		annotations := map[string]string{}
		if value := rapid.SampledFrom([]string{"-", "observe", "lend", "full", "on", ""}).Draw(t, "annotation"); value != "-" {
			annotations[api.ModeAnnotation] = value
		}
		got := s.under(&p).ModeOf(annotations)
		if rank[got] > rank[s.MaxMode] || p.maxMode != "" && rank[got] > rank[p.maxMode] {
			t.Fatalf("a revision with %v is in %s, beyond %s or %s", annotations, got, s.MaxMode, p.maxMode)
		}
		if len(annotations) == 0 && p.maxMode == "" && p.mode == "" && got != s.ModeOf(nil) {
			t.Fatalf("a policy that says nothing has a revision in %s, want %s", got, s.ModeOf(nil))
		}
	})
}
