package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/loadtest/demo/schedule"
)

const (
	warmTimeout = 2 * time.Minute
	// A warm path answers this often in a row.
	warmAnswers = 3
	// beyondSchedule is what a replay may take longer than its schedule.
	beyondSchedule = 90 * time.Second

	// k6BrokenThresholds is k6's exit code after a run that went as it should, with
	// requests that did not.
	k6BrokenThresholds = 99
)

// targets is where requests go.
type targets struct {
	gateway string            // URL of the ingress
	hosts   map[string]string // Host header of each function
	// revisions names the functions' revisions, namespace/name.
	revisions map[string]string
}

func (d *demo) findTargets(ctx context.Context) (targets, error) {
	t := targets{gateway: d.gatewayURL, hosts: map[string]string{}, revisions: map[string]string{}}
	if t.gateway == "" {
		namespace, name, ok := strings.Cut(d.gateway, "/")
		if !ok {
			return t, fmt.Errorf("--gateway is %q; it must be <namespace>/<name> of the ingress' Service", d.gateway)
		}
		var service corev1.Service
		if err := d.kubectl.get(ctx, &service, "-n", namespace, "service", name); err != nil {
			return t, err
		}
		address := service.Spec.ClusterIP
		if ingress := service.Status.LoadBalancer.Ingress; len(ingress) > 0 {
			address = ingress[0].IP + ingress[0].Hostname
		}
		t.gateway = "http://" + address
	}
	var list servingv1.ServiceList
	if err := d.kubectl.get(ctx, &list, "-n", d.namespace, "services.serving.knative.dev"); err != nil {
		return t, err
	}
	for _, service := range list.Items {
		if service.Status.URL != nil {
			t.hosts[service.Name] = service.Status.URL.Host
			t.revisions[service.Name] = d.namespace + "/" + service.Status.LatestReadyRevisionName
		}
	}
	for _, f := range d.services.all {
		if t.hosts[f] == "" {
			return t, fmt.Errorf("service %s/%s has no URL yet", d.namespace, f)
		}
	}
	return t, nil
}

// warm sends each function its smallest request until it answers as it should.
func (d *demo) warm(ctx context.Context, requests []schedule.Request) error {
	for function, r := range schedule.Smallest(requests) {
		inARow := 0
		err := eventually(ctx, warmTimeout, func(ctx context.Context) error {
			for ; inARow < warmAnswers; inARow++ {
				if err := d.send(ctx, r); err != nil {
					inARow = 0
					return fmt.Errorf("%s does not answer through the gateway: %w", function, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) send(ctx context.Context, r schedule.Request) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	body := []byte(r.Body)
	if r.Body == "" {
		body = d.corpus[r.Offset : r.Offset+r.Size]
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.targets.gateway+"/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Host = d.targets.hosts[r.Function]
	resp, err := d.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %.200s", resp.Status, said)
	}
	return nil
}

// runK6 runs a script that takes so long, with files by their variables, and returns the
// path of what it wrote on its console.
func (d *demo) runK6(ctx context.Context, name, script string, length time.Duration, files map[string]string, more ...string) (string, error) {
	hosts, err := json.Marshal(d.targets.hosts)
	if err != nil {
		return "", err
	}
	console := d.path(name + "-requests.jsonl")
	// k6 appends.
	if err := os.Remove(console); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	args := []string{"run", "--quiet", "--no-usage-report", "--log-format", "raw", "--console-output", console}
	for _, variable := range append([]string{"HOSTS=" + string(hosts), "GATEWAY=" + d.targets.gateway, "RUN=" + d.runID(name)}, more...) {
		args = append(args, "--env", variable)
	}
	for variable, path := range files {
		// k6 takes a path as relative to its script.
		absolute, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		args = append(args, "--env", variable+"="+absolute)
	}
	ctx, cancel := context.WithTimeout(ctx, length+beyondSchedule)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.k6, append(args, script)...)
	// k6 would take options from there.
	cmd.Env = without(d.kubectl.env, func(name string) bool { return strings.HasPrefix(name, "K6_") })
	// k6 ends by itself when it is interrupted.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) && exit.ExitCode() == k6BrokenThresholds && ctx.Err() == nil {
		return console, nil // what became of each request is on the console
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return "", fmt.Errorf("k6, run %s: %w: %s", name, err, lastLines(out))
}

// firstOf are the requests of the first part of a schedule.
func firstOf(requests []schedule.Request, length time.Duration) []schedule.Request {
	end := slices.IndexFunc(requests, func(r schedule.Request) bool { return r.AtMS >= length.Milliseconds() })
	if end < 0 {
		return requests
	}
	return requests[:end]
}

func lastLines(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// readResults reads the lines of k6's console.
func readResults(path string) ([]report.Result, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var results []report.Result
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r report.Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, len(results)+1, err)
		}
		results = append(results, r)
	}
	return results, lines.Err()
}

// without is an environment without the variables that are unwanted by their
// names in capitals.
func without(env []string, unwanted func(name string) bool) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return unwanted(strings.ToUpper(name))
	})
}

// misleads says whether a variable leads to another cluster than the box, or to
// a proxy before it: its addresses are this machine's own.
func misleads(name string) bool {
	return slices.Contains([]string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "KUBECONFIG"}, name)
}
