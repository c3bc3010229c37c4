package settings

import (
	stdcmp "cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
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
		c := follow(t, configMap(map[string]string{"mode": "lend"}))
		cluster := c.live.Settings()
		c.expectFor("shop", cluster)

		c.create("shop", "default", map[string]any{
			"mode": "full", "source": "owners", "minLoan": "50ms", "maxCPU": "1500m", "minCPU": int64(1), "minMemory": "64Mi",
			"safeguardPercent": int64(90), "protect": "strict", "domain": "team",
		})
		want := cluster
		want.Mode, want.Source, want.MinLoan = api.ModeFull, api.SourceOwners, 50*time.Millisecond
		want.SafeguardPercent, want.Protect, want.Domain = 90, api.ProtectStrict, "team"
		want.Bounds = Bounds{MaxCPUMilli: 1500, Keep: api.Resources{CPUMilli: 1000, MemoryBytes: 64 << 20}}
		c.expectFor("shop", want)
		c.expectFor("other", cluster)
		c.expectSettings(cluster)

		// Only one name counts, which the API server enforces.
		c.create("other", "second", map[string]any{"mode": "full"})
		c.expectFor("other", cluster)

		// A field that is removed falls back to the cluster's setting, and follows it.
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

// In order of precedence: a node's label, a policy, a namespace's label, the cluster's settings.
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

// An API server that does not know this version's rules accepts what they refuse. Nobody gets more by that.
func TestAPolicyThatCannotBeReadObserves(t *testing.T) {
	for field, value := range map[string]any{
		"mode": "fully", "maxMode": "none", "source": "pool", "minLoan": "2h", "maxCPU": "-1", "minCPU": "9E", "minMemory": "2Pi",
		"safeguardPercent": int64(96), "protect": "all", "domain": "a/b",
	} {
		synctest.Test(t, func(t *testing.T) {
			c := follow(t, configMap(map[string]string{"mode": "full"}))
			c.create("shop", "default", map[string]any{field: value})
			c.expectRefused("HarvestPolicy shop/default: the namespace's functions are only observed: spec." + field)
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

// A cluster with older definitions has no such kind. One that forbids reading it may have a policy.
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

func (c *cluster) remove(namespace string) {
	c.Helper()
	c.do(c.objects.Resource(harvestPolicies).Namespace(namespace).Delete(c.Context(), "default", metav1.DeleteOptions{}))
	synctest.Wait()
}

// In order of precedence, field by field: an annotation, the namespace's policy, the cluster's, the ConfigMap, the
// built-in default.
func TestTheClustersDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := follow(t, configMap(map[string]string{"mode": "lend", "source": "owners"}))
		built := c.live.Settings()
		c.create(Namespace, "default", map[string]any{
			"mode": "full", "source": "node", "minLoan": "50ms", "cpuReserve": "1500m", "maxCPU": "2", "minCPU": "200m", "minMemory": "64Mi",
		})
		want := built
		want.Mode, want.Source, want.MinLoan, want.CPUReserveMilli = api.ModeFull, api.SourceNode, 50*time.Millisecond, 1500
		want.Bounds = Bounds{MaxCPUMilli: 2000, Keep: api.Resources{CPUMilli: 200, MemoryBytes: 64 << 20}}
		c.expectSettings(want)
		c.expectFor("shop", want)
		c.expectFor(Namespace, want)
		c.expectSources(map[string]api.Source{"shop/n": api.SourceNode})

		// A namespace has what its policy says, even a zero, and otherwise what the cluster's says.
		c.create("shop", "default", map[string]any{"mode": "observe", "minCPU": "0"})
		shop := want
		shop.Mode, shop.Bounds.Keep.CPUMilli = api.ModeObserve, 0
		c.expectFor("shop", shop)
		c.expectFor("other", want)
		if got := c.live.For("shop").ModeOf(map[string]string{api.ModeAnnotation: "lend"}); got != api.ModeLend {
			t.Errorf("a revision that says lend is in %s", got)
		}

		// A field that is removed falls back to the ConfigMap or the built-in default.
		c.update(Namespace, map[string]any{"cpuReserve": "1"})
		want = built
		want.CPUReserveMilli = 1000
		c.expectFor("other", want)
		c.expectSources(map[string]api.Source{"shop/n": api.SourceOwners})
		c.remove(Namespace)
		c.expectSettings(built)
		c.expectFor("other", built)
	})
}

// A part of Libra keeps the last cluster's default that it could read. One that starts while it cannot be read changes
// nothing.
func TestTheClustersDefaultThatCannotBeRead(t *testing.T) {
	for field, value := range map[string]any{
		"mode": "fully", "source": "pool", "minLoan": "2h", "maxCPU": "-1", "minCPU": "9E", "minMemory": "2Pi", "cpuReserve": "-1",
	} {
		synctest.Test(t, func(t *testing.T) {
			c := follow(t, configMap(map[string]string{"mode": "full"}))
			c.create(Namespace, "default", map[string]any{"mode": "lend", "cpuReserve": "2"})
			was := c.live.Settings()
			c.update(Namespace, map[string]any{field: value})
			c.expectRefusedMetric(1)
			c.expectSettings(was, "HarvestPolicy libra-system/default, the cluster's default, cannot be read; the last version that could be read holds until it is corrected: spec."+field)
			c.update(Namespace, map[string]any{"mode": "observe"})
			c.expectRefusedMetric(0)
			if got := c.live.For("shop"); got.ModeOf(nil) != api.ModeObserve || got.CPUReserveMilli != 0 {
				t.Errorf("corrected: the settings are %+v", got)
			}

			c.remove(Namespace)
			c.create(Namespace, "default", map[string]any{field: value})
			c.expectRefused("all functions are only observed until it is corrected: spec." + field)
			if got := c.live.For("shop").ModeOf(map[string]string{api.ModeAnnotation: "full"}); got != api.ModeObserve {
				t.Errorf("%s %v at the start: the mode is %s, want observe", field, value, got)
			}
			c.remove(Namespace)
			c.expectRefusedMetric(0)
			if got := c.live.For("shop").ModeOf(nil); got != api.ModeFull {
				t.Errorf("taken away: the mode is %s, want that of the ConfigMap", got)
			}
		})
	}
	// A mistyped attempt to stop Libra must not turn on more.
	synctest.Test(t, func(t *testing.T) {
		c := follow(t, configMap(map[string]string{"mode": "full"}))
		c.create(Namespace, "default", map[string]any{"mode": "full"})
		c.update(Namespace, map[string]any{"mode": "full", "maxMode": "off"})
		c.expectRefused("all functions are only observed until it is corrected: spec.maxMode")
		if got := c.live.For("shop").ModeOf(nil); got != api.ModeObserve {
			t.Errorf("the mode is %s, want observe", got)
		}
		// It holds only while maxMode is mistyped, not longer.
		c.update(Namespace, map[string]any{"mode": "full", "maxMode": "full", "minLoan": "2h"})
		c.expectRefused("the last version that could be read holds until it is corrected: spec.minLoan")
		if got := c.live.For("shop").ModeOf(nil); got != api.ModeFull {
			t.Errorf("maxMode is corrected, and another field is not: the mode is %s, want full, as it was read last", got)
		}
		for i, most := range []api.Mode{api.ModeObserve, api.ModeLend} {
			// The same mistake is said once.
			c.update(Namespace, map[string]any{"mode": "full", "maxMode": string(most), "minLoan": fmt.Sprint(2+i, "h")})
			c.expectRefused("the last version that could be read holds, with this maxMode, until it is corrected: spec.minLoan")
			if got := c.live.For("shop").ModeOf(map[string]string{api.ModeAnnotation: "full"}); got != most {
				t.Errorf("maxMode is %s beside a mistyped field: the mode is %s", most, got)
			}
		}
	})
}

func TestOnlyTheClusterReservesCPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := follow(t, configMap(nil))
		c.create("shop", "default", map[string]any{"mode": "full", "cpuReserve": "3"})
		want := Default
		want.Mode = api.ModeFull
		c.expectFor("shop", want)
		c.expectSettings(Default, "HarvestPolicy shop/default: spec.cpuReserve is ignored: it applies to nodes, so only HarvestPolicy libra-system/default may set it")
	})
}

// A write of a status makes nobody look at all pods again.
func TestAPolicyThatSaysTheSameIsNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := follow(t)
		for _, namespace := range []string{Namespace, "shop"} {
			c.create(namespace, "default", map[string]any{"mode": "full", "minLoan": "50ms", "minCPU": "1"})
			before := c.changes.Load()
			c.update(namespace, map[string]any{"mode": "full", "minLoan": "0.05s", "minCPU": "1000m"})
			if got := c.changes.Load(); got != before {
				t.Errorf("%s: who listens is told of %d changes", namespace, got-before)
			}
		}
	})
}

// Each field by itself is the namespace's, or else the cluster's, or else what held without both.
func TestPrecedenceProperties(t *testing.T) {
	quantity := func(t *rapid.T, label string) *resource.Quantity {
		if !rapid.Bool().Draw(t, "has "+label) {
			return nil
		}
		return resource.NewMilliQuantity(rapid.Int64Range(0, 5).Draw(t, label)*1000, resource.DecimalSI)
	}
	spec := func(t *rapid.T, of string) (s v1alpha1.HarvestPolicySpec) {
		s.Mode = v1alpha1.Mode(rapid.SampledFrom([]string{"", "observe", "lend", "full"}).Draw(t, of+" mode"))
		s.Source = v1alpha1.Source(rapid.SampledFrom([]string{"", "node", "owners"}).Draw(t, of+" source"))
		if rapid.Bool().Draw(t, of+" has minLoan") {
			s.MinLoan = &metav1.Duration{Duration: time.Duration(rapid.IntRange(0, 3).Draw(t, of+" minLoan")) * time.Second}
		}
		s.MaxCPU, s.MinCPU, s.MinMemory = quantity(t, of+" maxCPU"), quantity(t, of+" minCPU"), quantity(t, of+" minMemory")
		return s
	}
	or := func(milli bool, quantities ...*resource.Quantity) int64 {
		for _, q := range quantities {
			switch {
			case q != nil && milli:
				return q.MilliValue()
			case q != nil:
				return q.Value()
			}
		}
		return 0
	}
	rapid.Check(t, func(t *rapid.T) {
		cluster, namespace := spec(t, "cluster"), spec(t, "namespace")
		cluster.CPUReserve = quantity(t, "cpuReserve")
		of, err := Default.WithDefault(cluster)
		if err != nil {
			t.Fatal(err)
		}
		if got := of.CPUReserveMilli; got != or(true, cluster.CPUReserve) {
			t.Fatalf("the reserve is %d", got)
		}
		got, err := of.With(namespace)
		if err != nil {
			t.Fatal(err)
		}
		want := of
		want.Mode = api.Mode(stdcmp.Or(namespace.Mode, cluster.Mode, v1alpha1.Mode(Default.Mode)))
		want.Source = api.Source(stdcmp.Or(namespace.Source, cluster.Source, v1alpha1.Source(Default.Source)))
		want.MinLoan = Default.MinLoan
		for _, d := range []*metav1.Duration{cluster.MinLoan, namespace.MinLoan} {
			if d != nil {
				want.MinLoan = d.Duration
			}
		}
		want.Bounds = Bounds{MaxCPUMilli: or(true, namespace.MaxCPU, cluster.MaxCPU), Keep: api.Resources{
			CPUMilli: or(true, namespace.MinCPU, cluster.MinCPU), MemoryBytes: or(false, namespace.MinMemory, cluster.MinMemory),
		}}
		if q := slices.DeleteFunc([]*resource.Quantity{namespace.MaxCPU, cluster.MaxCPU}, func(q *resource.Quantity) bool { return q == nil }); len(q) > 0 && q[0].IsZero() {
			want.Bounds.MaxCPUMilli = 1
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want, +got):\n%s", diff)
		}
	})
}

// No policy gives more than the cluster's max-mode, and its bounds are what it says or none.
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
