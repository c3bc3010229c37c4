package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
)

const (
	// predictorFunctions is the path of the predictor's list of functions.
	predictorFunctions = "/api/v1/namespaces/" + libraNamespace + "/services/libra-predictor:80/proxy/libra/v1/functions"
	predictorState     = "libra:predictor:{state}:functions"
	predictorLock      = "libra:predictor:{state}:lock"

	agentWritesMetric = "libra_agent_writes_total"

	// observationsPage bounds one answer of Redis.
	observationsPage = 500
	// Loans end with their invocations, or seconds later where an end is lost.
	ownLimitsTimeout = 30 * time.Second
	// The agent reports an invocation some moments after it ended.
	observationsTimeout = 5 * time.Second
)

// selector selects the services' pods and revisions.
func (s services) selector() string {
	return serving.ServiceLabelKey + " in (" + strings.Join(s.all, ",") + ")"
}

// modelsMissing names the functions that the predictor has no model of yet.
func (d *demo) modelsMissing(ctx context.Context) []string {
	var said struct {
		Functions []struct{ Name, Stage string }
	}
	// A predictor that does not answer has none of any.
	if out, err := d.kubectl.run(ctx, "get", "--raw", predictorFunctions); err == nil {
		_ = json.Unmarshal(out, &said)
	}
	known := map[string]bool{}
	for _, f := range said.Functions {
		known[f.Name] = f.Stage != "" && f.Stage != "profiling"
	}
	return slices.DeleteFunc(slices.Clone(d.services.optedIn), func(f string) bool { return known[d.targets.revisions[f]] })
}

// forget makes a predictor that has learned the functions in a demo before this
// one start anew. It would know the very requests that Libra is measured with.
func (d *demo) forget(ctx context.Context) error {
	var keys int
	if err := d.redis(ctx, &keys, "DEL", api.ObservationsStream, predictorState); err != nil || keys == 0 {
		return err
	}
	// Without its lock it cannot write what it still has in memory.
	if err := d.redis(ctx, &keys, "DEL", predictorLock, predictorState); err != nil {
		return err
	}
	d.say("predictor: starting it anew, to forget what it learned in an earlier demo")
	// The Deployment is KServe's, which would take back a restart of it.
	if _, err := d.kubectl.do(ctx, call{timeout: 2 * time.Minute, args: []string{
		"-n", libraNamespace, "delete", "pods", "-l", "serving.kserve.io/inferenceservice=libra", "--now"}}); err != nil {
		return err
	}
	if err := d.kubectl.wait(ctx, readyTimeout, "-n", libraNamespace, "rollout", "status", "deployment/libra-predictor"); err != nil {
		return err
	}
	if known := len(d.services.optedIn) - len(d.modelsMissing(ctx)); known > 0 {
		return fmt.Errorf("the predictor still has models of %d functions after it was started anew without observations", known)
	}
	return nil
}

// redis runs redis-cli in Redis' pod and decodes its answer.
func (d *demo) redis(ctx context.Context, into any, args ...string) error {
	out, err := d.kubectl.run(ctx, append([]string{"-n", libraNamespace, "exec", "deployment/redis", "--", "redis-cli", "--json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("redis-cli %s: %w: %.200s", strings.Join(args, " "), err, out)
	}
	return nil
}

// entry is one of a stream: its ID, and its fields and values in turn.
type entry struct {
	id     string
	fields map[string]string
}

func (e *entry) UnmarshalJSON(data []byte) error {
	var flat []string
	if err := json.Unmarshal(data, &[]any{&e.id, &flat}); err != nil {
		return err
	}
	if len(flat)%2 != 0 {
		return fmt.Errorf("entry %s has a field without a value", e.id)
	}
	e.fields = map[string]string{}
	for i := 0; i < len(flat); i += 2 {
		e.fields[flat[i]] = flat[i+1]
	}
	return nil
}

// lastObservation is the ID of the newest entry of the observations.
func (d *demo) lastObservation(ctx context.Context) (string, error) {
	var newest []entry
	if err := d.redis(ctx, &newest, "XREVRANGE", api.ObservationsStream, "+", "-", "COUNT", "1"); err != nil {
		return "", err
	}
	if len(newest) == 0 {
		return "0-0", nil
	}
	return newest[0].id, nil
}

// observations reads the observations of requests, after the entry last. It waits for
// them, but not for ever.
func (d *demo) observations(ctx context.Context, last string, wanted map[string]bool) (map[string]api.Observation, error) {
	found := map[string]api.Observation{}
	// Not the attempt's context: what one was reading when time is up counts.
	err := eventually(ctx, observationsTimeout, func(context.Context) error {
		for {
			var page []entry
			if err := d.redis(ctx, &page, "XRANGE", api.ObservationsStream, "("+last, "+", "COUNT", strconv.Itoa(observationsPage)); err != nil {
				return err
			}
			for _, e := range page {
				last = e.id
				if err := note(found, wanted, e); err != nil {
					return err
				}
			}
			if len(page) < observationsPage {
				break
			}
		}
		if missing := len(wanted) - len(found); missing > 0 {
			return fmt.Errorf("%w: %d of %d", errUnobserved, missing, len(wanted))
		}
		return nil
	})
	if errors.Is(err, errUnobserved) {
		d.say("not on record: %v; the agent observes those that were alone in their pod", err)
		return found, nil
	}
	return found, err
}

var errUnobserved = errors.New("invocations without an observation")

// note adds what an entry says of a wanted invocation. A request that the
// activator had to try again has an invocation per attempt, of which all but the
// first have a suffix.
func note(found map[string]api.Observation, wanted map[string]bool, e entry) error {
	if e.fields["v"] != strconv.Itoa(api.RecordVersion) {
		return nil
	}
	var o api.Observation
	if err := json.Unmarshal([]byte(e.fields["data"]), &o); err != nil {
		return fmt.Errorf("entry %s of %s: %w", e.id, api.ObservationsStream, err)
	}
	request, _, _ := strings.Cut(o.ID, ".")
	if !wanted[request] {
		return nil
	}
	if before, ok := found[request]; ok {
		o.Lent, o.Borrowed = before.Lent.Max(o.Lent), before.Borrowed.Max(o.Borrowed)
		o.Safeguarded = o.Safeguarded || before.Safeguarded
	}
	found[request] = o
	return nil
}

// agentWrites is how many limits the node agents have written to cgroups since each
// of them started.
func (d *demo) agentWrites(ctx context.Context) (int, error) {
	var pods corev1.PodList
	if err := d.kubectl.get(ctx, &pods, "pods", "-n", libraNamespace, "-l", "app=libra-agent"); err != nil {
		return 0, err
	}
	sum := 0.0
	for _, p := range pods.Items {
		out, err := d.kubectl.run(ctx, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8080/proxy/metrics", libraNamespace, p.Name))
		if err != nil {
			return 0, err
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(out))
		if err != nil {
			return 0, fmt.Errorf("metrics of pod %s: %w", p.Name, err)
		}
		for _, m := range families[agentWritesMetric].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "result" && l.GetValue() == "written" {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return int(sum), nil
}

// watchingLimits notes the limits of the functions' pods, first as they are and
// then each change, while during runs.
func (d *demo) watchingLimits(ctx context.Context, during func() error) ([]report.LimitChange, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := d.kubectl.command(ctx, "get", "pods", "-n", d.namespace, "-l", d.services.selector(),
		"--watch", "--output-watch-events", "-o", "json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	events, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("watch the functions' pods: %w", err)
	}
	watched := make(chan []report.LimitChange, 1)
	go func() { watched <- limitChanges(events, time.Now) }()
	err = during()
	early := len(watched) > 0
	cancel()
	changes := <-watched
	_ = cmd.Wait() // it was killed
	if err == nil && (early || len(changes) == 0) {
		err = fmt.Errorf("watch the functions' pods: it ended too early, or saw none: %s", bytes.TrimSpace(stderr.Bytes()))
	}
	return changes, err
}

// limitChanges reads watch events until there are no more.
func limitChanges(r io.Reader, now func() time.Time) []report.LimitChange {
	var changes []report.LimitChange
	last := map[string]api.Resources{} // by pod
	for events := json.NewDecoder(r); ; {
		var event struct{ Object corev1.Pod }
		// The last one ends where the watch was stopped.
		if err := events.Decode(&event); err != nil {
			return changes
		}
		pod := event.Object
		if pod.DeletionTimestamp != nil {
			continue
		}
		for _, c := range pod.Spec.Containers {
			limit := api.FromList(c.Resources.Limits)
			if c.Name != api.UserContainer || limit == last[pod.Name] {
				continue
			}
			last[pod.Name] = limit
			changes = append(changes, report.LimitChange{At: now(), Function: pod.Labels[serving.ServiceLabelKey], Pod: pod.Name, Limit: limit})
		}
	}
}

// awaitOwnLimits waits until every pod of the functions has the limits of its
// revision: nothing is lent.
func (d *demo) awaitOwnLimits(ctx context.Context) error {
	var revisions servingv1.RevisionList
	if err := d.kubectl.get(ctx, &revisions, "revisions.serving.knative.dev", "-n", d.namespace, "-l", d.services.selector()); err != nil {
		return err
	}
	err := eventually(ctx, ownLimitsTimeout, func(context.Context) error {
		var pods corev1.PodList
		if err := d.kubectl.get(ctx, &pods, "pods", "-n", d.namespace, "-l", d.services.selector()); err != nil {
			return err
		}
		return d.services.ownLimits(revisions.Items, pods.Items)
	})
	if err != nil {
		return fmt.Errorf("the functions do not have their own limits after %v; does deployment/libra-resizer in %s run? %w", ownLimitsTimeout, libraNamespace, err)
	}
	return nil
}

// ownLimits says which pods' limits, as asked for or as in force, are not those
// of their revision, and which functions have no pod.
func (s services) ownLimits(revisions []servingv1.Revision, pods []corev1.Pod) error {
	own := map[string]api.Resources{}
	for _, r := range revisions {
		own[r.Name] = api.FromList(r.Spec.Containers[0].Resources.Limits)
	}
	var wrong []error
	seen := map[string]bool{}
	for _, p := range pods {
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed {
			continue
		}
		seen[p.Labels[serving.ServiceLabelKey]] = true
		want := own[p.Labels[serving.RevisionLabelKey]]
		var asked, inForce api.Resources
		for _, c := range p.Spec.Containers {
			if c.Name == api.UserContainer {
				asked = api.FromList(c.Resources.Limits)
			}
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.Name == api.UserContainer && s.Resources != nil {
				inForce = api.FromList(s.Resources.Limits)
			}
		}
		if asked != want || inForce != want {
			wrong = append(wrong, fmt.Errorf("pod %s: limits %v in its spec, %v in its status, %v in its revision", p.Name, asked, inForce, want))
		}
	}
	for _, f := range s.all {
		if !seen[f] {
			wrong = append(wrong, fmt.Errorf("%s has no pod", f))
		}
	}
	return errors.Join(wrong...)
}

// restarts counts, by container, how often those that matter were restarted.
func (d *demo) restarts(ctx context.Context) (map[string]int, error) {
	restarts := map[string]int{}
	for _, args := range [][]string{
		{"-n", d.namespace, "-l", d.services.selector()},
		{"-n", d.namespace, "-l", "app=store"},
		{"-n", libraNamespace},
		{"-n", servingNamespace, "-l", activatorSelector},
	} {
		var pods corev1.PodList
		if err := d.kubectl.get(ctx, &pods, append([]string{"pods"}, args...)...); err != nil {
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

// restartsSince adds up what is in after and not in before.
func restartsSince(before, after map[string]int) int {
	sum := 0
	for container, n := range after {
		sum += n - before[container]
	}
	return sum
}
