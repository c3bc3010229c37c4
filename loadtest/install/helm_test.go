//go:build install

package install

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var helmPath = flag.String("helm", "", "the box's Helm")

// The chart does what the files do, and its hooks are in the right order: Helm is through with the installation when
// the activator is Libra's, and with the removal when nothing is.
func TestChartInstallsUpgradesAndRemoves(t *testing.T) {
	began := time.Now()
	u := newUser(t)
	bin, home := t.TempDir(), t.TempDir()
	if err := os.Symlink(*helmPath, filepath.Join(bin, "helm")); err != nil {
		t.Fatal(err)
	}
	u.env = append(u.env, "PATH="+bin+":"+u.path(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	u.step("release", func() { u.release(serveRegistry(t)+"/libra", root, version) })
	before := u.objects()

	u.step("install", func() { u.types("helm install") })
	if image := u.sh("kubectl -n knative-serving get deployment activator -o jsonpath='{.spec.template.spec.containers[0].image}'"); !strings.Contains(image, "/libra-activator@") {
		t.Errorf("Helm has ended, and the activator runs %s", image)
	}
	if rights, _ := u.try("kubectl get clusterrole libra-uninstall"); !strings.Contains(rights, "NotFound") {
		t.Errorf("the rights of the removal are there: %s", rights)
	}
	u.sh("kubectl create namespace " + namespace)
	load := u.start(function{compression, 100_000})
	u.step("status has a number", func() { u.awaitStatus() })
	u.sh("kubectl libra mode " + compression + " full -n " + namespace)
	u.step("upgrade", func() { u.types("helm upgrade") })
	u.step("remove", func() { u.types("helm remove") })
	answered, failed := load.stop()
	u.sh("kubectl delete namespace " + namespace)

	r := results{Seconds: u.took, Requests: answered, FailedRequests: failed, ObjectsLeft: left(before, u.objects()), FilesLeft: u.files()}
	r.Minutes = time.Since(began).Minutes()
	u.write(r)
	if len(r.ObjectsLeft) > 0 || len(r.FilesLeft) > 0 {
		t.Errorf("left are the objects %q and the files %q", r.ObjectsLeft, r.FilesLeft)
	}
	if failed > 0 || answered == 0 {
		t.Errorf("%d requests were answered and %d failed", answered, failed)
	}
}

// path is where commands are looked for.
func (u *user) path() string {
	path := ""
	for _, variable := range u.env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = value
		}
	}
	return path
}
