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

// The chart does what the files do, and its hooks run in the right order: Helm finishes the installation when the
// activator is Libra's, and the removal when nothing is.
func TestChartInstallsUpgradesAndRemoves(t *testing.T) {
	began := time.Now()
	u := newUser(t)
	bin, home := t.TempDir(), t.TempDir()
	if err := os.Symlink(*helmPath, filepath.Join(bin, "helm")); err != nil {
		t.Fatal(err)
	}
	u.env = append(u.env, "PATH="+bin+":"+u.path(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	u.step("release", u.released)
	before := u.fields()

	u.step("install", func() { u.types("helm install") })
	if image := u.sh("kubectl -n knative-serving get deployment activator -o jsonpath='{.spec.template.spec.containers[0].image}'"); !strings.Contains(image, "/libra-activator@") {
		t.Errorf("Helm has ended, and the activator runs %s", image)
	}
	if rights, _ := u.try("kubectl get clusterrole libra-uninstall"); !strings.Contains(rights, "NotFound") {
		t.Errorf("the rights of the removal are there: %s", rights)
	}
	u.step("samples", func() { u.types("samples") })
	load := u.send(function{name: compression, step: 100_000, in: samples}, function{name: "uploader", step: 100_000, in: samples})
	u.step("status has a number", func() { u.awaitStatus() })
	u.types("samples in full")
	u.step("upgrade", func() { u.types("helm upgrade") })
	u.step("remove", func() { u.types("helm remove") })
	answered, failed := load.stop()
	failed += u.failedOfJob()
	u.types("samples removed")

	left, files := u.changed(before), u.files()
	u.record(map[string]any{
		"minutes": time.Since(began).Minutes(), "seconds": u.took, "requests": answered, "failed_requests": failed,
		"objects_left": left, "files_left": files,
	})
	if len(left) > 0 || len(files) > 0 {
		t.Errorf("left are of objects:\n%s\nand the files %q", strings.Join(left, "\n"), files)
	}
	if failed > 0 || answered == 0 {
		t.Errorf("%d requests were answered and %d failed", answered, failed)
	}
}

// path returns the folders in which commands are looked for.
func (u *user) path() string {
	path := ""
	for _, variable := range u.env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = value
		}
	}
	return path
}
