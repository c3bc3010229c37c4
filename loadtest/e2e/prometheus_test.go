//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"libra.dev/libra/dashboards"
)

// scrapeEvery is short, so that rates are there soon.
const scrapeEvery = 2 * time.Second

// boxBinary is the path of a tool that `box build` has made.
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

// prometheus is a real one, on loopback, with the jobs and rules that we ship.
type prometheus struct{ url string }

// startPrometheus starts one that reads the kubeconfig, and stops it with the test.
func startPrometheus(t *testing.T, kubeconfig string) *prometheus {
	t.Helper()
	binary, dir := boxBinary(t, "prometheus"), t.TempDir()
	configure(t, dir, kubeconfig)
	address := freeAddress(t)
	cmd := exec.Command(binary,
		"--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-exited; err != nil || t.Failed() {
			t.Logf("Prometheus ended with %v, and said:\n%s", err, output.String())
		}
	})
	p := &prometheus{url: "http://" + address}
	eventually(t, time.Minute, "Prometheus that is ready", func() error {
		select {
		case err := <-exited:
			exited <- err
			t.Fatalf("Prometheus does not take our configuration: %v", err)
		default:
		}
		response, err := client.Get(p.url + "/-/ready")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
	return p
}

// configure writes what a user would mount, but for the kubeconfig: ours does not run
// in the cluster.
func configure(t *testing.T, dir, kubeconfig string) {
	t.Helper()
	if err := os.CopyFS(dir, dashboards.Prometheus()); err != nil {
		t.Fatal(err)
	}
	scrape, err := fs.ReadFile(dashboards.Prometheus(), "scrape.yaml")
	if err != nil {
		t.Fatal(err)
	}
	absolute, err := filepath.Abs(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	discovered := []byte("- role: pod\n    namespaces:")
	if !bytes.Contains(scrape, discovered) {
		t.Fatalf("scrape.yaml has no %q to name the kubeconfig in", discovered)
	}
	scrape = bytes.ReplaceAll(scrape, discovered, []byte("- role: pod\n    kubeconfig_file: "+absolute+"\n    namespaces:"))
	interval := scrapeEvery.String()
	main, err := yaml.Marshal(map[string]any{
		"global":              map[string]string{"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
		"scrape_config_files": []string{"scrape.yaml"},
		"rule_files":          dashboards.RuleFiles,
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"scrape.yaml": scrape, "prometheus.yml": main} {
		path := filepath.Join(dir, name)
		if err := os.RemoveAll(path); err != nil { // what was copied may be read-only
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// sample is one series of an answer.
type sample struct {
	labels map[string]string
	value  float64
}

// query returns the samples of an expression now, but those that are not a number, of
// which a panel shows nothing.
func (p *prometheus) query(ctx context.Context, expr string) ([]sample, error) {
	var answer struct {
		ResultType string
		Result     []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if err := p.get(ctx, "/api/v1/query", url.Values{"query": {expr}}, &answer); err != nil {
		return nil, err
	}
	var samples []sample
	for _, r := range answer.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("value of %s: %w", expr, err)
		}
		if !math.IsNaN(value) {
			samples = append(samples, sample{r.Metric, value})
		}
	}
	return samples, nil
}

// labelValues are those of a label, in the series that a selector selects.
func (p *prometheus) labelValues(ctx context.Context, selector, label string) ([]string, error) {
	var values []string
	err := p.get(ctx, "/api/v1/label/"+label+"/values", url.Values{"match[]": {selector}}, &values)
	return values, err
}

// get decodes the data of an answer. A refused query is an error that says why.
func (p *prometheus) get(ctx context.Context, path string, values url.Values, data any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+values.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s of Prometheus: %s: %w", path, response.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%w: %s", errInvalid, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}

var errInvalid = errors.New("a query that is not valid")
