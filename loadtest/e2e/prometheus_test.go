//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"libra.dev/libra/loadtest/prometheus"
)

// scrapeEvery is short, so that rates are there soon.
const scrapeEvery = 2 * time.Second

// boxBinary returns the path of a tool that `box build` has made.
func boxBinary(t *testing.T, name string) string {
	t.Helper()
	cache := os.Getenv("LIBRA_BOX_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(dir, "libra-box")
	}
	path := filepath.Join(cache, "bin", name)
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
