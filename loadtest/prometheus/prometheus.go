// Package prometheus runs a real Prometheus on loopback, with the scrape jobs and the
// rules that Libra ships.
package prometheus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/dashboards"
	"libra.dev/libra/loadtest/bench/machine"
)

const (
	readyTimeout = time.Minute
	queryTimeout = 30 * time.Second
)

// ErrInvalid means that Prometheus refused a query because of the query itself.
var ErrInvalid = errors.New("the query was refused by Prometheus")

// Options configures a Server. All fields must be set.
type Options struct {
	Binary     string        // of Prometheus 3
	Kubeconfig string        // of the cluster with the pods to scrape
	Dir        string        // for configuration and data; Start empties it
	Interval   time.Duration // between scrapes, and between evaluations of rules
}

// Server is a Prometheus that runs until it is stopped, or until the process that started
// it ends.
type Server struct {
	URL string

	client *http.Client
	input  io.Closer
	output bytes.Buffer // read only after exited
	exited chan error
}

// Start starts a Prometheus and waits until it is ready.
func Start(ctx context.Context, o Options) (*Server, error) {
	if err := configure(o); err != nil {
		return nil, fmt.Errorf("configure Prometheus: %w", err)
	}
	address, err := machine.FreeAddress()
	if err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + address, client: newClient(), exited: make(chan error, 1)}
	// The shell ends the server when its input closes, which also happens when this
	// process is killed.
	const script = `exec 3<&0; "$@" & server=$!; { read -r _ <&3; kill $server; } >/dev/null 2>&1 & wait $server`
	cmd := exec.Command("sh", "-c", script, "sh", o.Binary,
		"--config.file="+filepath.Join(o.Dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(o.Dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	if s.input, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start Prometheus: %w", err)
	}
	go func() { s.exited <- cmd.Wait() }()
	if err := s.awaitReady(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is not ready: %w", o.Binary, err), s.Stop())
	}
	return s, nil
}

func (s *Server) awaitReady(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, readyTimeout, true, func(context.Context) (bool, error) {
		select {
		case err := <-s.exited:
			s.exited <- err
			return false, errors.New("it has ended")
		default:
		}
		response, err := s.client.Get(s.URL + "/-/ready")
		if err == nil {
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				err = errors.New(response.Status)
			}
		}
		last = err
		return err == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// newClient returns a client that uses no proxy, whatever the environment says.
func newClient() *http.Client {
	return &http.Client{Timeout: queryTimeout, Transport: &http.Transport{}}
}

// Stop ends the server. If the server did not end cleanly, the error has what it printed.
func (s *Server) Stop() error {
	s.input.Close()
	err := <-s.exited
	if err == nil {
		return nil
	}
	return fmt.Errorf("the Prometheus server ended with %w; its output:\n%s", err, s.output.String())
}

// configure writes what a user would mount, and adds the kubeconfig, because this server
// does not run in the cluster.
func configure(o Options) error {
	if err := os.RemoveAll(o.Dir); err != nil {
		return err
	}
	if err := os.CopyFS(o.Dir, dashboards.Prometheus()); err != nil {
		return err
	}
	scrape, err := fs.ReadFile(dashboards.Prometheus(), "scrape.yaml")
	if err != nil {
		return err
	}
	kubeconfig, err := filepath.Abs(o.Kubeconfig)
	if err != nil {
		return err
	}
	discovered := []byte("- role: pod\n    namespaces:")
	if !bytes.Contains(scrape, discovered) {
		return fmt.Errorf("scrape.yaml has no %q to add the kubeconfig to", discovered)
	}
	scrape = bytes.ReplaceAll(scrape, discovered, []byte("- role: pod\n    kubeconfig_file: "+kubeconfig+"\n    namespaces:"))
	interval := o.Interval.String()
	main, err := yaml.Marshal(map[string]any{
		"global":              map[string]string{"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
		"scrape_config_files": []string{"scrape.yaml"},
		"rule_files":          dashboards.RuleFiles,
	})
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"scrape.yaml": scrape, "prometheus.yml": main} {
		path := filepath.Join(o.Dir, name)
		if err := os.RemoveAll(path); err != nil { // what was copied may be read-only
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Sample is one series of a query's result.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query returns the samples of an expression now, except those that are not a number,
// which panels do not show. If the query itself is wrong, the error is an ErrInvalid.
func (s *Server) Query(ctx context.Context, expr string) ([]Sample, error) {
	var answer struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if err := s.get(ctx, "/api/v1/query", url.Values{"query": {expr}}, &answer); err != nil {
		return nil, err
	}
	var samples []Sample
	for _, r := range answer.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("value of %s: %w", expr, err)
		}
		if !math.IsNaN(value) {
			samples = append(samples, Sample{r.Metric, value})
		}
	}
	return samples, nil
}

// LabelValues returns the values of a label in the series that match a selector.
func (s *Server) LabelValues(ctx context.Context, selector, label string) ([]string, error) {
	var values []string
	err := s.get(ctx, "/api/v1/label/"+label+"/values", url.Values{"match[]": {selector}}, &values)
	return values, err
}

func (s *Server) get(ctx context.Context, path string, values url.Values, data any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path+"?"+values.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer struct {
		Status, ErrorType, Error string
		Data                     json.RawMessage
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("decode the answer of Prometheus to %s: %s: %w", path, response.Status, err)
	}
	if answer.Status == "success" {
		return json.Unmarshal(answer.Data, data)
	}
	// The other types, such as timeout and unavailable, are about the server.
	if slices.Contains([]string{"bad_data", "execution"}, answer.ErrorType) {
		return fmt.Errorf("%w: %s", ErrInvalid, answer.Error)
	}
	return fmt.Errorf("query Prometheus at %s: %s: %s", path, answer.ErrorType, answer.Error)
}
