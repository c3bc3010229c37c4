package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
)

const (
	// predictorPython is the Python of the predictor's image, and predictorFunctions a program
	// for it that prints the predictor's list of functions.
	predictorPython    = "python3.11"
	predictorFunctions = `import urllib.request as u; print(u.urlopen("http://127.0.0.1:8080/libra/v1/functions", timeout=10).read().decode())`
	predictorState     = "libra:predictor:{state}:functions"
	predictorLock      = "libra:predictor:{state}:lock"
)

// modelsMissing returns the functions of which the predictor has no model yet.
func (d *demo) modelsMissing(ctx context.Context) []string {
	var said struct {
		Functions []struct{ Name, Stage string }
	}
	// A predictor that does not answer has no models.
	if out, err := d.askPredictor(ctx); err == nil {
		_ = json.Unmarshal(out, &said)
	}
	known := map[string]bool{}
	for _, f := range said.Functions {
		known[f.Name] = f.Stage != "" && f.Stage != "profiling"
	}
	return slices.DeleteFunc(slices.Clone(d.services.optedIn), func(f string) bool { return known[d.targets.revisions[f]] })
}

// askPredictor returns the predictor's list of functions. It asks inside the pod, because the
// NetworkPolicy may keep the API server's proxy out.
func (d *demo) askPredictor(ctx context.Context) ([]byte, error) {
	return d.kubectl.run(ctx, "-n", libraNamespace, "exec", "deployment/libra-predictor", "--", predictorPython, "-c", predictorFunctions)
}

// forget restarts a predictor that learned the functions in an earlier demo, without what it
// learned: it would know the very requests that Libra is measured with.
func (d *demo) forget(ctx context.Context) error {
	var keys int
	if err := d.redis(ctx, &keys, "DEL", api.ObservationsStream, predictorState); err != nil || keys == 0 {
		return err
	}
	// Without its lock the predictor cannot write what it still has in memory.
	if err := d.redis(ctx, &keys, "DEL", predictorLock, predictorState); err != nil {
		return err
	}
	d.say("restarting the predictor, so that it forgets what it learned in an earlier demo")
	// KServe owns the Deployment, and would revert a restart of it.
	if _, err := d.kubectl.do(ctx, call{timeout: 2 * time.Minute, args: []string{
		"-n", libraNamespace, "delete", "pods", "-l", "serving.kserve.io/inferenceservice=libra", "--now"}}); err != nil {
		return err
	}
	if err := d.kubectl.wait(ctx, readyTimeout, "-n", libraNamespace, "rollout", "status", "deployment/libra-predictor"); err != nil {
		return err
	}
	if known := len(d.services.optedIn) - len(d.modelsMissing(ctx)); known > 0 {
		return fmt.Errorf("the predictor still has models of %d functions after a restart without observations", known)
	}
	return nil
}

// redis runs redis-cli in Redis' pod and decodes its answer.
func (d *demo) redis(ctx context.Context, into any, args ...string) error {
	out, err := d.redisCLI(ctx, append([]string{"--json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("redis-cli %s: %w: %.200s", strings.Join(args, " "), err, out)
	}
	return nil
}

// restarts returns the restart counts of the containers that matter.
func (e *evaluate) restarts(ctx context.Context) (map[string]int, error) {
	where := [][]string{{"-n", libraNamespace}, {"-n", agentNamespace}, {"-n", servingNamespace, "-l", activatorSelector}}
	for namespace := range e.places {
		where = append(where, []string{"-n", namespace})
	}
	restarts := map[string]int{}
	for _, args := range where {
		var pods corev1.PodList
		if err := e.kubectl.get(ctx, &pods, append([]string{"pods"}, args...)...); err != nil {
			return nil, err
		}
		for _, p := range pods.Items {
			for _, s := range p.Status.ContainerStatuses {
				restarts[string(p.UID)+"/"+s.Name] = int(s.RestartCount)
			}
		}
	}
	return restarts, nil
}

// restartsSince returns the number of restarts in after that are not in before.
func restartsSince(before, after map[string]int) int {
	sum := 0
	for container, n := range after {
		sum += n - before[container]
	}
	return sum
}
