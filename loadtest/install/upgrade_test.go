//go:build install

package install

import (
	"errors"
	"flag"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/loadtest/containers"
	"libra.dev/libra/pkg/api"
)

var basePath = flag.String("base", "", "tree of the commit to upgrade from and go back to")

const (
	learned = 5 * time.Minute
	resumes = 10 * time.Second
	drained = 3 * time.Minute // an activator drains for most of a minute
)

// upgradeResults is the content of out/upgrade-test/results.json.
type upgradeResults struct {
	Seconds        map[string]float64 `json:"seconds"`
	ResumedSeconds map[string]float64 `json:"resumed_seconds"`
	Requests       int                `json:"requests"`
	FailedRequests int                `json:"failed_requests"`
	// ObjectsChanged has the objects that differ after the way back from before the upgrade.
	ObjectsChanged []string `json:"objects_changed"`
}

// TestUpgradeAndBack takes a cluster whose functions lend under load from another commit's release to this one's and back,
// by the commands of docs/install.md.
func TestUpgradeAndBack(t *testing.T) {
	ours := newUser(t)
	base := ours.in("base")
	registry := serveRegistry(t) + "/libra"
	ours.step("release of base", func() { base.release(registry, *basePath, "0.0.0-base") })
	ours.step("release", func() { ours.release(registry, root, version) })

	ours.step("install base", func() { base.types("install") })
	ours.sh(`kubectl -n libra-system patch configmap config-libra --type merge -p '{"data":{"mode":"full"}}'`)
	var load *load
	ours.step("base lends", func() {
		ours.sh("kubectl create namespace " + namespace)
		ours.sh("kubectl label namespace " + namespace + " " + api.SourceLabel + "=" + string(api.SourceOwners))
		ours.deploy("functions/store/deployment.yaml")
		ours.deploy("functions/store/service.yaml")
		load = ours.start(function{name: "uploader", step: 300_000}, function{name: compression, step: 400_000})
		ours.lends(learned)
	})
	before := ours.objects()

	r := upgradeResults{Seconds: ours.took, ResumedSeconds: map[string]float64{}}
	activators := ours.activators()
	ours.step("upgrade", func() { ours.types("upgrade") })
	ours.awaitEnd(activators)
	r.ResumedSeconds["upgrade"] = ours.lends(resumes).Seconds()

	ours.step("go back", func() { base.types("go back") })
	r.ResumedSeconds["go back"] = ours.lends(resumes).Seconds()
	ours.sh("kubectl libra check --all-namespaces")

	r.Requests, r.FailedRequests = load.stop()
	r.ObjectsChanged = left(before, ours.objects())
	ours.write(r)
	if r.FailedRequests > 0 || r.Requests == 0 {
		t.Errorf("%d requests were answered and %d failed", r.Requests, r.FailedRequests)
	}
}

// in returns the user with the release in another folder.
func (u user) in(folder string) *user {
	u.dist = filepath.Join(*outPath, folder)
	return &u
}

// activators returns the IDs of the activators' containers.
func (u *user) activators() (ids []string) {
	u.Helper()
	var pods corev1.PodList
	if err := u.kube.List(u.Context(), &pods, client.InNamespace("knative-serving"), client.MatchingLabels{"app": "activator"}); err != nil {
		u.Fatal(err)
	}
	for _, pod := range pods.Items {
		ids = append(ids, containerID(pod, "activator"))
	}
	return ids
}

func containerID(pod corev1.Pod, container string) string {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			_, id, _ := strings.Cut(status.ContainerID, "://")
			return id
		}
	}
	return ""
}

// awaitEnd waits until containers have ended.
func (u *user) awaitEnd(ids []string) {
	u.Helper()
	for _, id := range ids {
		u.until(drained, "end of the activator's container "+id, func() error {
			if _, err := containers.Find(id); err == nil {
				return errors.New("it runs")
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		})
	}
}

// lends waits until something is lent to the borrower, and returns how long that took.
func (u *user) lends(most time.Duration) time.Duration {
	u.Helper()
	took, lent := u.loan(most)
	if !lent {
		for _, command := range []string{"status", "explain " + compression + " --size 3200000"} {
			out, err := u.try("kubectl libra -n " + namespace + " " + command)
			u.Logf("$ kubectl libra %s\n%s%v", command, out, err)
		}
		u.Fatalf("the borrower has no more than it is owed: nothing was lent for %s", most)
	}
	return took
}

// loan waits until the borrower's cgroup changes to more CPU than its owner configured. More CPU from the beginning does not
// count: it may be left from before.
func (u *user) loan(most time.Duration) (took time.Duration, lent bool) {
	u.Helper()
	from := time.Now()
	var pods corev1.PodList
	if err := u.kube.List(u.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{serving.ServiceLabelKey: compression}); err != nil || len(pods.Items) != 1 {
		u.Fatalf("the borrower has %d pods (%v), want 1", len(pods.Items), err)
	}
	var revision servingv1.Revision
	if err := u.kube.Get(u.Context(), client.ObjectKey{Namespace: namespace, Name: pods.Items[0].Labels[serving.RevisionLabelKey]}, &revision); err != nil {
		u.Fatal(err)
	}
	container, err := containers.Find(containerID(pods.Items[0], api.UserContainer))
	if err != nil {
		u.Fatal(err)
	}
	owed := revision.Spec.GetContainer().Resources.Limits.Cpu().MilliValue()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for was := owed + 1; ; <-ticker.C {
		limits, err := container.Limits()
		if err != nil {
			u.Fatal(err)
		}
		took := time.Since(from)
		if was <= owed && limits.CPUMilli > owed {
			return took, true
		}
		if was = limits.CPUMilli; took > most {
			return took, false
		}
	}
}
