//go:build install

package install

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/prometheus"
)

const noticed = 2 * time.Minute

// finding is a finding of `kubectl libra check`.
type finding struct {
	Severity, Check, Message, Remedy string
	Object                           struct{ Kind, Namespace, Name string }
}

// findings returns all that the check finds.
func (u *user) findings() []finding {
	u.Helper()
	out, err := u.try("kubectl libra check --all-namespaces -o json 2>/dev/null") // it fails if an error is among them
	var report struct{ Findings []finding }
	if wrong := json.Unmarshal([]byte(out), &report); wrong != nil {
		u.Fatalf("kubectl libra check: %v, %v: %s", err, wrong, out)
	}
	return report.Findings
}

// noticesStock waits until the check and the alert's expression report a stock activator in the place of Libra's. over
// waits until they no longer do.
func (u *user) noticesStock() (over func()) {
	u.Helper()
	p := u.startPrometheus()
	replaced := alertExpression(u, "LibraActivatorReplaced")
	u.until(noticed, "the check's error", func() error { return u.has(activatorAgain, true) })
	u.until(noticed, "LibraActivatorReplaced", func() error { return holds(u, p, replaced, true) })
	u.Cleanup(func() {
		if err := p.Stop(); err != nil {
			u.Error(err)
		}
	})
	return func() {
		u.until(noticed, "an end of the check's error", func() error { return u.has("", false) })
		u.until(noticed, "an end of LibraActivatorReplaced", func() error { return holds(u, p, replaced, false) })
	}
}

// activatorAgain is the remedy for a stock activator. docs/upgrade-knative.md has it, too.
const activatorAgain = "kubectl -n libra-system delete job libra-activator-install --ignore-not-found && kubectl apply --server-side -f " + activatorFile

func (u *user) runsJobAgain() {
	u.Helper()
	u.sh(activatorAgain)
	u.sh("kubectl -n libra-system wait --for=condition=complete --timeout=5m job/libra-activator-install")
	u.sh("kubectl -n libra-system logs job/libra-activator-install")
}

// has returns an error unless the check finds that the activator is another, with a remedy, or, without want, does not.
func (u *user) has(remedy string, want bool) error {
	u.Helper()
	const severity, check = "error", "activator-image"
	for _, f := range u.findings() {
		if f.Check == check && f.Severity == severity && strings.Contains(f.Remedy, remedy) {
			if !want {
				return fmt.Errorf("it finds %+v", f)
			}
			return nil
		}
	}
	if want {
		return fmt.Errorf("it finds no %s of %s with %q in its remedy", severity, check, remedy)
	}
	return nil
}

func (u *user) startPrometheus() *prometheus.Server {
	u.Helper()
	p, err := prometheus.Start(u.Context(), prometheus.Options{
		Binary: filepath.Join(filepath.Dir(*kubelitePath), "prometheus"), Kubeconfig: *kubeconfig,
		Dir: filepath.Join(u.TempDir(), "prometheus"), Interval: 2 * time.Second,
	})
	if err != nil {
		u.Fatal(err)
	}
	return p
}

func holds(u *user, p *prometheus.Server, expression string, want bool) error {
	samples, err := p.Query(u.Context(), expression)
	if err == nil && len(samples) > 0 != want {
		err = fmt.Errorf("its expression has %d results", len(samples))
	}
	return err
}

// alertExpression returns the expression of an alert in dashboards/prometheus.
func alertExpression(u *user, alert string) string {
	u.Helper()
	text, err := os.ReadFile(filepath.Join(root, "dashboards/prometheus/health.yaml"))
	if err != nil {
		u.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		u.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == alert {
				return r.Expr
			}
		}
	}
	u.Fatalf("there is no alert %s", alert)
	return ""
}
