//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"libra.dev/libra/loadtest/prometheus"
	"libra.dev/libra/pkg/boxcache"
)

// scrapeEvery is short, so that rates are there soon.
const scrapeEvery = 2 * time.Second

// boxBinary returns the path of a tool that `box build` has made.
func boxBinary(t *testing.T, name string) string {
	t.Helper()
	path, err := boxcache.Binary(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: `make box-build` makes it", err)
	}
	return path
}

// startPrometheus starts a Prometheus with a kubeconfig, and stops it at the end of
// the test.
func startPrometheus(t *testing.T, kubeconfig string) *prometheus.Server {
	t.Helper()
	p, err := prometheus.Start(t.Context(), prometheus.Options{
		Binary: boxBinary(t, "prometheus"), Kubeconfig: kubeconfig,
		Dir: filepath.Join(t.TempDir(), "prometheus"), Interval: scrapeEvery,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}
