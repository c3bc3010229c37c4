//go:build e2e

package e2e

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// Deleting what docs/install.md has users delete removes only what is Libra's: Knative's
// activator stays.
func TestKnativeStaysWhenLibrasManifestsAreDeleted(t *testing.T) {
	for _, dir := range []string{"base", "activator", "components/duplicator"} {
		deleted := kubectl(t, "delete", "--ignore-not-found", "--dry-run=server", "--output=name", "--kustomize=../../manifests/"+dir)
		for object := range strings.Lines(deleted) {
			object = strings.TrimSpace(object)
			kind, name, _ := strings.Cut(object, "/")
			if name == "activator" || kind == "namespace" && name != libraNamespace && name != agentNamespace {
				t.Errorf("%s: it would delete %s", dir, object)
			}
		}
		if !strings.Contains(deleted, "libra") && dir != "components/duplicator" {
			t.Errorf("%s: it would delete nothing of Libra's, only %q", dir, deleted)
		}
	}
}

// The demo has set the mode. Applying the manifests again, as in an upgrade, neither
// resets it nor is refused.
func TestInstallingAgainKeepsTheMode(t *testing.T) {
	applied := kubectl(t, "apply", "--server-side", "--dry-run=server", "--output=json",
		"--namespace="+libraNamespace, "--filename=../../manifests/base/settings/configmap.yaml")
	var configMap corev1.ConfigMap
	if err := json.Unmarshal([]byte(applied), &configMap); err != nil {
		t.Fatalf("%v: %s", err, applied)
	}
	got, err := settings.Parse(configMap.Data)
	if err != nil || got.Mode != api.ModeFull {
		t.Errorf("the settings are %+v, %v, want the mode full", got, err)
	}
}

// KServe makes no route for a cluster-local service.
func TestPredictorHasNoRoute(t *testing.T) {
	for _, kind := range []string{"httproutes.gateway.networking.k8s.io", "ingresses.networking.k8s.io"} {
		if routes := kubectl(t, "get", kind, "--namespace="+libraNamespace, "--output=name"); routes != "" {
			t.Errorf("there are routes from outside: %s", routes)
		}
	}
}

// kubectl runs the box's kubectl, and returns its output.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(boxBinary(t, "kubelite"))
	cmd.Args = append([]string{"kubectl", "--kubeconfig=" + *kubeconfig}, args...) // argv[0] selects the command
	output, err := cmd.Output()
	if err != nil {
		var stderr []byte
		if exit, ok := err.(*exec.ExitError); ok {
			stderr = exit.Stderr
		}
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, stderr)
	}
	return string(output)
}
