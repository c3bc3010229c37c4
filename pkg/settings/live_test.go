package settings

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"libra.dev/libra/pkg/api"
)

// cluster is a cluster whose settings are followed. The tests run in a bubble, so a
// change has arrived when all goroutines in it wait.
type cluster struct {
	*testing.T
	client  *fake.Clientset
	objects *dynamicfake.FakeDynamicClient
	live    *Live
	reader  *sdkmetric.ManualReader

	mu      sync.Mutex
	refused []string
	changes atomic.Int32
}

func follow(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{T: t, client: fake.NewClientset(objects...), objects: noPolicies()}
	c.start()
	awaitSynced(t, c.live)
	return c
}

// start follows the settings until the test ends.
func (c *cluster) start() {
	c.Helper()
	live, err := NewLive(c.client, c.objects, func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refused = append(c.refused, err.Error())
	})
	if err != nil {
		c.Fatal("NewLive() =", err)
	}
	c.live = live
	c.reader = sdkmetric.NewManualReader()
	if err := live.Meter(sdkmetric.NewMeterProvider(sdkmetric.WithReader(c.reader))); err != nil {
		c.Fatal("Meter() =", err)
	}
	live.OnChange(func() { c.changes.Add(1) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		live.Run(ctx)
	}()
	c.Cleanup(func() {
		cancel()
		<-done
	})
}

// awaitSynced waits until everything has been read and the listeners have been called.
func awaitSynced(t *testing.T, l *Live) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !l.Synced() && time.Now().Before(until); {
		time.Sleep(time.Second)
	}
	if !l.Synced() {
		t.Fatal("not all is read after a minute")
	}
	time.Sleep(time.Second)
	synctest.Wait()
}

// expectSettings compares the settings, and what was refused since the last comparison.
func (c *cluster) expectSettings(want Settings, refused ...string) {
	c.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, c.live.Settings()); diff != "" {
		c.Error("Settings() (-want, +got):\n" + diff)
	}
	c.expectRefused(refused...)
}

func (c *cluster) expectRefused(want ...string) {
	c.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	got := c.refused
	c.refused = nil
	if len(got) != len(want) {
		c.Errorf("refused %q, want %d errors", got, len(want))
		return
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			c.Errorf("refused %q, want %q in it", got[i], want[i])
		}
	}
}

// expectRefusedMetric compares what is exported.
func (c *cluster) expectRefusedMetric(want int64) {
	c.Helper()
	synctest.Wait()
	var data metricdata.ResourceMetrics
	c.do(c.reader.Collect(c.Context(), &data))
	var exported []metricdata.Metrics
	for _, scope := range data.ScopeMetrics {
		exported = append(exported, scope.Metrics...)
	}
	if len(exported) != 1 || exported[0].Name != "libra.settings.refused" {
		c.Errorf("exported are %v, want libra.settings.refused alone", exported)
		return
	}
	if points := exported[0].Data.(metricdata.Gauge[int64]).DataPoints; len(points) != 1 || points[0].Value != want {
		c.Errorf("libra.settings.refused is %v, want one point of %d", points, want)
	}
}

// expectSources compares sources. The keys of want are namespace/node.
func (c *cluster) expectSources(want map[string]api.Source) {
	c.Helper()
	synctest.Wait()
	for _, at := range slices.Sorted(maps.Keys(want)) {
		namespace, node, _ := strings.Cut(at, "/")
		if got := c.live.Source(namespace, node); got != want[at] {
			c.Errorf("Source(%q, %q) = %s, want %s", namespace, node, got, want[at])
		}
	}
}

func noPolicies() *dynamicfake.FakeDynamicClient {
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{harvestPolicies: "HarvestPolicyList"})
}

func configMap(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: ConfigMap}, Data: data}
}

func namespaceWith(name, source string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: labelled(name, source)}
}

func nodeWith(name, source string) *corev1.Node {
	return &corev1.Node{ObjectMeta: labelled(name, source)}
}

func labelled(name string, source string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{api.SourceLabel: source}}
}

func (c *cluster) do(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) edit(data map[string]string) {
	c.Helper()
	_, err := c.client.CoreV1().ConfigMaps(Namespace).Update(c.Context(), configMap(data), metav1.UpdateOptions{})
	c.do(err)
}

func TestLiveFollowsTheConfigMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := follow(t)
		c.expectSettings(Absent)

		_, err := c.client.CoreV1().ConfigMaps(Namespace).Create(t.Context(), configMap(map[string]string{"mode": "lend"}), metav1.CreateOptions{})
		c.do(err)
		c.expectSettings(Settings{Mode: api.ModeLend, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement})

		good := Settings{Mode: api.ModeFull, MaxMode: Default.MaxMode, Source: api.SourceOwners, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement}
		c.edit(map[string]string{"mode": "full", "source": "owners"})
		c.expectSettings(good)

		// A key that cannot be read leaves its setting as it was. The others hold.
		c.edit(map[string]string{"mode": "on", "source": "node", "sauce": "node"})
		c.expectRefusedMetric(1)
		c.expectSettings(Settings{Mode: api.ModeFull, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement},
			`not all settings are accepted: key "mode" of ConfigMap libra-system/config-libra: mode is "on", want observe, lend or full; until it is corrected, "full" applies`)

		c.edit(map[string]string{"mode": "full"})
		c.expectRefusedMetric(0)
		c.expectSettings(Settings{Mode: api.ModeFull, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement})

		c.do(c.client.CoreV1().ConfigMaps(Namespace).Delete(t.Context(), ConfigMap, metav1.DeleteOptions{}))
		c.expectSettings(Absent)
		if got := c.live.For("ns").ModeOf(map[string]string{api.ModeAnnotation: "full"}); got != api.ModeObserve {
			t.Errorf("without the ConfigMap a function's own mode is %s, want observe", got)
		}
	})
}

func TestLiveBeginsWithABadConfigMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := follow(t, configMap(map[string]string{"mode": "full", "source": "pool"}))
		c.expectRefusedMetric(1)
		c.expectSettings(Settings{Mode: api.ModeFull, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement}, `source is "pool", want node or owners; until it is corrected, "node" applies`)
		c.do(c.client.CoreV1().ConfigMaps(Namespace).Delete(t.Context(), ConfigMap, metav1.DeleteOptions{}))
		c.expectRefusedMetric(0)
	})
	synctest.Test(t, func(t *testing.T) {
		c := follow(t, configMap(map[string]string{"mode": "fully", "source": "owners"}))
		c.expectSettings(Settings{Mode: api.ModeObserve, MaxMode: Default.MaxMode, Source: api.SourceOwners, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement}, `until it is corrected, "observe" applies`)
	})
}

func TestLiveSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := follow(t,
			&corev1.Namespace{ObjectMeta: labelled("owners", "owners")},
			&corev1.Namespace{ObjectMeta: labelled("node", "node")},
			&corev1.Namespace{ObjectMeta: labelled("bad", "Node")},
			&corev1.Node{ObjectMeta: labelled("owners", "owners")},
			&corev1.Node{ObjectMeta: labelled("node", "node")},
			&corev1.Node{ObjectMeta: labelled("bad", "any")},
		)
		c.mu.Lock()
		slices.Sort(c.refused)
		c.mu.Unlock()
		c.expectRefused(
			`ignoring label libra.dev/source of namespace bad: source is "Node", want node or owners`,
			`ignoring label libra.dev/source of node bad: source is "any", want node or owners`,
		)
		c.expectSources(map[string]api.Source{
			"other/other": api.SourceNode, "bad/bad": api.SourceNode, "owners/bad": api.SourceOwners,
			"owners/other": api.SourceOwners, "node/other": api.SourceNode,
			// A node's source takes precedence over a namespace's.
			"owners/node": api.SourceNode, "node/owners": api.SourceOwners, "other/owners": api.SourceOwners,
		})

		ctx := t.Context()
		_, err := c.client.CoreV1().ConfigMaps(Namespace).Create(ctx, configMap(map[string]string{"source": "owners"}), metav1.CreateOptions{})
		c.do(err)
		_, err = c.client.CoreV1().Namespaces().Update(ctx, &corev1.Namespace{ObjectMeta: labelled("owners", "node")}, metav1.UpdateOptions{})
		c.do(err)
		c.do(c.client.CoreV1().Namespaces().Delete(ctx, "node", metav1.DeleteOptions{}))
		c.do(c.client.CoreV1().Nodes().Delete(ctx, "node", metav1.DeleteOptions{}))
		c.expectSources(map[string]api.Source{
			"other/other": api.SourceOwners, "bad/bad": api.SourceOwners,
			"owners/other": api.SourceNode, "node/other": api.SourceOwners,
			"other/node": api.SourceOwners, "owners/node": api.SourceNode, "owners/owners": api.SourceOwners,
		})

		// A label that can no longer be read counts as none.
		_, err = c.client.CoreV1().Namespaces().Update(ctx, &corev1.Namespace{ObjectMeta: labelled("owners", "")}, metav1.UpdateOptions{})
		c.do(err)
		c.expectSources(map[string]api.Source{"owners/other": api.SourceOwners})
		c.expectRefused("want node or owners")
	})
}

// The admins of a namespace may edit their policy as often as they like, and each call of a listener is much work.
func TestEditsInNamespacesAreToldTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		l := &Live{listeners: []func(){func() { calls.Add(1) }}}
		for range 50 {
			l.changedInNamespace()
			time.Sleep(namespacesEvery / 50)
			synctest.Wait()
		}
		if got := calls.Load(); got != 2 {
			t.Errorf("listeners are called %d times in a second of edits, want for the first and for the last", got)
		}
		l.changedInNamespace()
		l.changed()
		if calls.Load() != 3 {
			t.Error("a change of the whole cluster waits for a namespace's")
		}
		time.Sleep(namespacesEvery)
		synctest.Wait()
		if calls.Load() < 4 {
			t.Error("the last edit is not told of")
		}
	})
}

func TestOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := follow(t, configMap(map[string]string{"mode": "full"}), &corev1.Node{ObjectMeta: labelled("n", "owners")})
		ctx := t.Context()
		before := c.changes.Load()
		for _, tc := range []struct {
			name    string
			changes int32
			do      func() error
		}{
			{"an edit", 1, func() error {
				_, err := c.client.CoreV1().ConfigMaps(Namespace).Update(ctx, configMap(nil), metav1.UpdateOptions{})
				return err
			}},
			{"an edit of the most", 1, func() error {
				_, err := c.client.CoreV1().ConfigMaps(Namespace).Update(ctx, configMap(map[string]string{"max-mode": "observe"}), metav1.UpdateOptions{})
				return err
			}},
			{"and back", 1, func() error {
				_, err := c.client.CoreV1().ConfigMaps(Namespace).Update(ctx, configMap(nil), metav1.UpdateOptions{})
				return err
			}},
			{"a bad edit", 0, func() error {
				_, err := c.client.CoreV1().ConfigMaps(Namespace).Update(ctx, configMap(map[string]string{"mode": ""}), metav1.UpdateOptions{})
				return err
			}},
			{"a namespace's label", 1, func() error {
				_, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: labelled("ns", "owners")}, metav1.CreateOptions{})
				return err
			}},
			{"a node whose label is the same", 0, func() error {
				_, err := c.client.CoreV1().Nodes().Update(ctx, &corev1.Node{ObjectMeta: labelled("n", "owners"), Status: corev1.NodeStatus{Phase: corev1.NodeRunning}}, metav1.UpdateOptions{})
				return err
			}},
			{"a node is gone", 1, func() error { return c.client.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}) }},
			{"the settings are gone", 1, func() error {
				return c.client.CoreV1().ConfigMaps(Namespace).Delete(ctx, ConfigMap, metav1.DeleteOptions{})
			}},
		} {
			c.do(tc.do())
			synctest.Wait()
			if got := c.changes.Load() - before; got != tc.changes {
				t.Errorf("%s: told of %d changes, want %d", tc.name, got, tc.changes)
			}
			before = c.changes.Load()
		}
	})
}

// Until everything has been read, nothing is changed, whatever is known by then. After
// that, the listeners are called.
func TestNothingChangesBeforeAllIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{T: t, objects: noPolicies(), client: fake.NewClientset(
			configMap(map[string]string{"mode": "full", "source": "owners"}),
			&corev1.Namespace{ObjectMeta: labelled("ns", "node")},
		)}
		var forbidden atomic.Bool
		forbidden.Store(true)
		c.client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return forbidden.Load(), nil, errors.New("nodes is forbidden")
		})
		c.start()
		synctest.Wait()
		if c.live.Synced() {
			t.Error("Synced() before the nodes are read")
		}
		if err := c.live.Ready(nil); err == nil || !strings.Contains(err.Error(), "still waiting to read nodes; this needs the verbs get, list and watch") {
			t.Errorf("Ready() = %v, want an error that names the nodes alone", err)
		}
		if got := c.live.For("ns").ModeOf(map[string]string{api.ModeAnnotation: "full"}); got != api.ModeObserve {
			t.Errorf("the mode of a revision in full is %s, want observe", got)
		}
		c.expectSettings(Default, "cannot watch nodes, so the settings stay as they are; this needs the verbs get, list and watch")

		forbidden.Store(false)
		before := c.changes.Load()
		awaitSynced(t, c.live)
		synctest.Wait()
		if c.changes.Load() == before {
			t.Error("nobody is told that all has been read")
		}
		if err := c.live.Ready(nil); err != nil {
			t.Errorf("Ready() = %v after all has been read", err)
		}
		if got := c.live.For("ns").ModeOf(map[string]string{api.ModeAnnotation: "full"}); got != api.ModeFull {
			t.Errorf("the mode of a revision in full is %s, want that", got)
		}
		c.expectSources(map[string]api.Source{"ns/n": api.SourceNode, "other/n": api.SourceOwners})
		// The reflector tried more than once, and that was said once.
		c.expectSettings(Settings{Mode: api.ModeFull, MaxMode: Default.MaxMode, Source: api.SourceOwners, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement})
	})
}

// Live reads only the settings, and only labelled namespaces and nodes, so that it needs
// no more permissions.
func TestLiveReadsNoMoreThanItNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := follow(t)
		seen := map[string]bool{}
		for _, action := range c.client.Actions() {
			var r clienttesting.ListRestrictions
			switch a := action.(type) {
			case clienttesting.ListAction:
				r = a.GetListRestrictions()
			case clienttesting.WatchAction:
				r = clienttesting.ListRestrictions{Labels: a.GetWatchRestrictions().Labels, Fields: a.GetWatchRestrictions().Fields}
			default:
				t.Errorf("%s of %s", action.GetVerb(), action.GetResource().Resource)
				continue
			}
			resource := action.GetResource().Resource
			seen[action.GetVerb()+" "+resource] = true
			switch resource {
			case "configmaps":
				if action.GetNamespace() != Namespace || r.Fields.String() != "metadata.name=config-libra" {
					t.Errorf("%s of ConfigMaps of %q with fields %s", action.GetVerb(), action.GetNamespace(), r.Fields)
				}
			default:
				if r.Labels.String() != api.SourceLabel {
					t.Errorf("%s of %s with labels %s", action.GetVerb(), resource, r.Labels)
				}
			}
		}
		for _, want := range []string{"watch configmaps", "watch namespaces", "watch nodes"} {
			if !seen[want] {
				t.Errorf("there is no %s in %v", want, seen)
			}
		}
	})
}
