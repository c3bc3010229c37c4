package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/pkg/api"
)

const (
	predictorService = "libra-predictor:80"

	// observationsPage bounds one answer of Redis.
	observationsPage = 500
	// The agent reports an invocation some moments after it ended.
	observationsTimeout = 20 * time.Second
)

// modelsMissing names the functions that the predictor has no model of yet.
func (d *demo) modelsMissing(ctx context.Context) []string {
	var missing []string
	for _, f := range schedule.Functions {
		path := fmt.Sprintf("/api/v1/namespaces/%s/services/%s/proxy/v2/models/%s/ready", libraNamespace, predictorService, d.targets.models[f])
		// An unknown model is an error of status 404.
		if _, err := d.kubectl.run(ctx, "get", "--raw", path); err != nil {
			missing = append(missing, f)
		}
	}
	return missing
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

// outcomes reads what became of the invocations of results, from the
// observations after the entry last. It waits for them, but not for ever.
func (d *demo) outcomes(ctx context.Context, last string, results []report.Result) (map[string]report.Outcome, error) {
	wanted := map[string]bool{}
	for _, r := range results {
		if r.RequestID != "" && r.Function != schedule.Plain {
			wanted[r.RequestID] = true
		}
	}
	found := map[string]report.Outcome{}
	err := eventually(ctx, observationsTimeout, func(ctx context.Context) error {
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
		d.say("not on record: %v", err)
		return found, nil
	}
	return found, err
}

var errUnobserved = errors.New("invocations without an observation")

// note adds what an entry says of a wanted invocation. A request that the
// activator had to try again has an invocation per attempt, of which all but the
// first have a suffix.
func note(found map[string]report.Outcome, wanted map[string]bool, e entry) error {
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
	before := found[request]
	found[request] = report.Outcome{Lent: before.Lent.Max(o.Lent), Borrowed: before.Borrowed.Max(o.Borrowed)}
	return nil
}

// watchLimits notes the CPU limits of the functions' pods, first as they are and
// then each change, until stop is called.
func (d *demo) watchLimits(ctx context.Context) (stop func() ([]report.LimitChange, error), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := d.kubectl.command(ctx, "get", "pods", "-n", d.namespace, "-l", serving.ServiceLabelKey,
		"--watch", "--output-watch-events", "-o", "json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	events, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch the functions' pods: %w", err)
	}
	watched := make(chan []report.LimitChange, 1)
	go func() { watched <- limitChanges(events, time.Now) }()
	return func() ([]report.LimitChange, error) {
		cancel()
		changes := <-watched
		_ = cmd.Wait() // it was killed
		if len(changes) == 0 {
			return nil, fmt.Errorf("watch the functions' pods: none seen: %s", bytes.TrimSpace(stderr.Bytes()))
		}
		return changes, nil
	}, nil
}

// limitChanges reads watch events until there are no more.
func limitChanges(r io.Reader, now func() time.Time) []report.LimitChange {
	var changes []report.LimitChange
	last := map[string]int64{} // by pod
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
			milli := c.Resources.Limits.Cpu().MilliValue()
			if c.Name != api.UserContainer || milli == last[pod.Name] {
				continue
			}
			last[pod.Name] = milli
			changes = append(changes, report.LimitChange{At: now(), Function: pod.Labels[serving.ServiceLabelKey], CPUMilli: milli})
		}
	}
}

// restarts counts, by container, how often those that matter were restarted.
func (d *demo) restarts(ctx context.Context) (map[string]int, error) {
	restarts := map[string]int{}
	for _, args := range [][]string{
		{"-n", d.namespace, "-l", serving.ServiceLabelKey},
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
