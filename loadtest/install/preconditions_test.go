//go:build install

package install

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const broken = "broken" // begins the names of namespaces with broken functions

// precondition is a precondition to break on the cluster, and what the check must say about it.
type precondition struct {
	name                            string
	breaks, mends                   string
	severity, check, object, remedy string
}

// preconditions has those that can be broken on the box without breaking another one.
var preconditions = []precondition{
	{
		"limits of queue-proxy", configures(`"queue-sidecar-cpu-limit":"1"`), configures(`"queue-sidecar-cpu-limit":null`),
		"error", "queue-proxy-limits", "config-deployment", `patch configmap config-deployment`,
	},
	{"a function without limits", serves("", "limits"), unserved, "error", "function-limits", broken, `"limits":{"cpu"`},
	{"no bound on requests where the source is owners", serves("owners", "containerConcurrency"), unserved, "error", "function-concurrency", broken, `"containerConcurrency":1`},
	{"an activator that can be passed", serves("", "target-burst-capacity"), unserved, "warning", "function-in-path", broken, `target-burst-capacity":"-1"`},
	{"an annotation that is refused", serves("", "libra.dev/mode"), unserved, "warning", "function-annotations", broken, `libra.dev/mode":null`},
	{
		"a ResourceQuota on limits", serves("", "") + ` && kubectl -n $NAMESPACE create quota all --hard=limits.cpu=8`, unserved,
		"", "resource-quota", broken, "",
	},
	{
		"a LimitRange", serves("", "") + ` && kubectl apply -f - <<< '{"apiVersion":"v1","kind":"LimitRange","metadata":{"namespace":"'$NAMESPACE'","name":"all"},"spec":{"limits":[{"type":"Container","default":{"cpu":"1"}}]}}'`, unserved,
		"", "limit-range", broken, "",
	},
	{"a source that is none", serves("mine", ""), `kubectl label namespace $NAMESPACE --overwrite libra.dev/source=node && ` + unserved, "", "source-labels", broken, "libra.dev/source"},
	{"no Redis", `kubectl -n libra-system scale deployment redis --replicas=0`, `kubectl -n libra-system scale deployment redis --replicas=1`, "error", "redis-ready", "redis", "redis"},
	{
		"a Redis that evicts",
		`kubectl -n libra-system get deployment redis -o json | sed s/noeviction/allkeys-lru/ | kubectl apply --server-side --force-conflicts -f -`, applied,
		"error", "redis-memory", "redis", "libra.yaml",
	},
	{"no resizer", `kubectl -n libra-system scale deployment libra-resizer --replicas=0`, applied, "error", "resizer-ready", "libra-resizer", "scale deployment libra-resizer"},
	{"an admission policy that is not bound", `kubectl delete validatingadmissionpolicybinding libra-resizer`, applied, "error", "admission-policies", "libra-resizer", "libra.yaml"},
	{"no quota for critical pods", `kubectl -n libra-node delete resourcequota critical-pods`, applied, "warning", "critical-pods", "critical-pods", "libra.yaml"},
	{
		"an activator without its rights", `kubectl delete clusterrole libra-activator`, `kubectl apply --server-side -f libra-activator.yaml`,
		"error", "activator-rights", "libra-activator", "libra-activator.yaml",
	},
	{
		"a stock image that is not written down", `kubectl -n knative-serving annotate deployment activator libra.dev/was=$(` + stockImage + `) libra.dev/stock-image-`,
		`kubectl -n knative-serving annotate deployment activator libra.dev/stock-image=$(kubectl -n knative-serving get deployment activator -o jsonpath='{.metadata.annotations.libra\.dev/was}') libra.dev/was-`,
		"error", "activator-image", "activator", "libra.dev/stock-image=",
	},
	{
		"an image that is neither", `kubectl -n knative-serving set image deployment/activator activator=dev.local/nobodys:1`, `kubectl -n knative-serving rollout undo deployment/activator`,
		"", "activator-image", "activator", "",
	},
}

const (
	// A namespace with Knative's pods takes minutes to go, so each function has another.
	unserved   = `kubectl -n $NAMESPACE delete ksvc broken && kubectl delete namespace $NAMESPACE --wait=false`
	applied    = `kubectl apply --server-side --force-conflicts -f libra.yaml`
	stockImage = `kubectl -n knative-serving get deployment activator -o jsonpath='{.metadata.annotations.libra\.dev/stock-image}'`
)

func configures(data string) string {
	return fmt.Sprintf(`kubectl -n knative-serving patch configmap config-deployment --type merge -p '{"data":{%s}}'`, data)
}

// serves returns commands that make a function without one of the things that Libra needs, in a namespace with a source. Its image
// is that of a sample.
func serves(source, without string) string {
	annotations := map[string]string{"autoscaling.knative.dev/target-burst-capacity": "-1"}
	concurrency, limits := 1, `{"cpu":"100m","memory":"64Mi"}`
	switch without {
	case "limits":
		limits = `{}`
	case "containerConcurrency":
		concurrency = 0
	case "target-burst-capacity":
		delete(annotations, "autoscaling.knative.dev/target-burst-capacity")
	case "libra.dev/mode":
		annotations["libra.dev/mode"] = "on"
	}
	var of []string
	for key, is := range annotations {
		of = append(of, fmt.Sprintf("%q:%q", key, is))
	}
	label := ""
	if source != "" {
		label = fmt.Sprintf(`,"labels":{"libra.dev/source":%q}`, source)
	}
	return fmt.Sprintf(`kubectl apply -f - <<< '{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"'$NAMESPACE'"%s}}'`, label) +
		fmt.Sprintf(` && kubectl apply -f - <<< '{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"namespace":"'$NAMESPACE'","name":"broken"},`+
			`"spec":{"template":{"metadata":{"labels":{"libra.dev/enabled":"true"},"annotations":{%s}},"spec":{"containerConcurrency":%d,"containers":[`+
			`{"image":"'"$IMAGE"'","resources":{"requests":{"cpu":"10m","memory":"16Mi"},"limits":%s}}]}}}}'`, strings.Join(of, ","), concurrency, limits)
}

// TestBrokenPreconditionsAreNamed breaks what Libra needs, one thing at a time. `kubectl libra check` must name each, with what to
// type about it.
func TestBrokenPreconditionsAreNamed(t *testing.T) {
	u := newUser(t)
	u.step("release", u.released)
	u.step("install", func() { u.types("install") })
	u.env = append(u.env, "IMAGE="+u.image("libra-fn-compression"))

	named := 0
	for i, p := range preconditions {
		t.Run(p.name, func(t *testing.T) {
			one := *u
			one.T = t
			one.env = append(slices.Clone(u.env), fmt.Sprintf("NAMESPACE=%s-%d", broken, i))
			before := one.matching(p)
			if before != nil {
				t.Fatalf("it is found before it is broken: %+v", *before)
			}
			one.sh(p.breaks)
			var found *finding
			one.until(time.Minute, "a finding of "+p.check, func() error {
				if found = one.matching(p); found == nil {
					return errors.New("there is none")
				}
				return nil
			})
			t.Logf("%s: %s\n%s", found.Severity, found.Message, found.Remedy)
			if found.Remedy == "" {
				t.Error("it has no remedy")
			} else {
				named++
			}
			one.sh(p.mends)
			one.until(3*time.Minute, "an end of it", func() error {
				if left := one.matching(p); left != nil {
					return fmt.Errorf("it still finds %+v", *left)
				}
				return nil
			})
		})
	}
	u.step("remove", func() { u.types("remove") })
	u.awaitRemoved()
	u.record(map[string]any{"preconditions_named": named})
	if named < 12 {
		t.Errorf("%d preconditions were named, want 12", named)
	}
}

// matching returns the finding of a precondition, or nil.
func (u *user) matching(p precondition) *finding {
	u.Helper()
	for _, f := range u.findings() {
		if f.Severity == "ok" || f.Check != p.check || p.severity != "" && f.Severity != p.severity || !strings.Contains(f.Remedy, p.remedy) {
			continue
		}
		if strings.Contains(f.Object.Namespace+"/"+f.Object.Name, p.object) {
			return &f
		}
	}
	return nil
}
