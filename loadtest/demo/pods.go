package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/pkg/api"
)

// pod is a pod of the API.
type pod = corev1.Pod

const reasonOOMKilled = "OOMKilled"

// hurryAfter is how long a pod may stay unready before it is replaced, because the kubelet
// restarts it less and less often.
const hurryAfter = 15 * time.Second

// whole waits until each function of a place has exactly its pods, all ready, and none is
// terminating: pods added in another block are gone. If hurry is set, it replaces pods that
// stay unready, because after each OOM kill the kubelet backs off longer.
func (d *demo) whole(ctx context.Context, hurry bool) error {
	began := time.Now()
	return eventually(ctx, wholeTimeout, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := d.kubectl.get(ctx, &pods, "pods", "-n", d.namespace, "-l", serving.ServiceLabelKey); err != nil {
			return err
		}
		err := d.services.whole(pods.Items)
		if err == nil || !hurry || time.Since(began) < hurryAfter {
			return err
		}
		began = time.Now()
		for _, p := range pods.Items {
			if !isReady(p) && p.DeletionTimestamp == nil {
				_, failed := d.kubectl.do(ctx, call{timeout: time.Minute, args: []string{"-n", d.namespace, "delete", "pod", p.Name, "--ignore-not-found", "--now"}})
				err = errors.Join(err, failed)
			}
		}
		return err
	})
}

// whole returns an error that names the functions that do not have exactly their pods, all
// ready.
func (s services) whole(pods []corev1.Pod) error {
	all, ready := map[string]int{}, map[string]int{}
	for _, p := range pods {
		f := p.Labels[serving.ServiceLabelKey]
		if all[f]++; isReady(p) {
			ready[f]++
		}
	}
	var wrong []error
	for _, f := range s.all {
		if all[f] != s.pods() || ready[f] != s.pods() {
			wrong = append(wrong, fmt.Errorf("%s: %d of %d pods are ready, want %d", f, ready[f], all[f], s.pods()))
		}
	}
	return errors.Join(wrong...)
}

func isReady(p corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// kills counts, by pod, how often the user container was restarted after it ran out of
// memory.
type kills map[string]int

// oomKills returns the OOM kills at a place.
func (d *demo) oomKills(ctx context.Context) (kills, error) {
	var pods corev1.PodList
	if err := d.kubectl.get(ctx, &pods, "pods", "-n", d.namespace, "-l", serving.ServiceLabelKey); err != nil {
		return nil, err
	}
	return killsOf(pods.Items), nil
}

func killsOf(pods []corev1.Pod) kills {
	found := kills{}
	for _, p := range pods {
		for _, s := range p.Status.ContainerStatuses {
			if s.Name != api.UserContainer {
				continue
			}
			n := 0
			// The restart count does not include a killed container that has not been
			// restarted.
			if t := s.State.Terminated; t != nil && t.Reason == reasonOOMKilled {
				n = 1
			}
			if t := s.LastTerminationState.Terminated; t != nil && t.Reason == reasonOOMKilled {
				n += int(s.RestartCount)
			}
			found[string(p.UID)] = n
		}
	}
	return found
}

// since returns the number of kills after an earlier count.
func (k kills) since(before kills) int {
	sum := 0
	for pod, n := range k {
		sum += max(0, n-before[pod])
	}
	return sum
}

// podWatch records when the pods of a place existed.
type podWatch struct {
	began  time.Time
	cancel context.CancelFunc
	cmd    *exec.Cmd
	stderr bytes.Buffer

	done chan struct{}
	mu   sync.Mutex
	pods podTimes
}

// podTimes are the times when pods existed, by UID.
type podTimes map[string]*podTime

type podTime struct {
	from, to time.Time // to is zero while the pod exists
	cold     bool      // it was created after the watch began
}

// watchPods starts a watch.
func (d *demo) watchPods(ctx context.Context) (*podWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &podWatch{began: time.Now(), cancel: cancel, done: make(chan struct{}), pods: podTimes{}}
	w.cmd = d.kubectl.command(ctx, "get", "pods", "-n", d.namespace, "-l", serving.ServiceLabelKey, "--watch", "--output-watch-events", "-o", "json")
	w.cmd.Stderr = &w.stderr
	events, err := w.cmd.StdoutPipe()
	if err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch the pods in %s: %w", d.namespace, err)
	}
	go func() {
		defer close(w.done)
		w.follow(events)
	}()
	return w, nil
}

func (w *podWatch) follow(events io.Reader) {
	for decoder := json.NewDecoder(events); ; {
		var event struct {
			Type   string
			Object corev1.Pod
		}
		// The last event is cut off where the watch was stopped.
		if decoder.Decode(&event) != nil {
			return
		}
		w.mu.Lock()
		w.pods.note(time.Now(), w.began, event.Type, event.Object)
		w.mu.Unlock()
	}
}

// note adds an event. A pod counts from when it has a node until it is told to end.
func (t podTimes) note(now, began time.Time, kind string, p corev1.Pod) {
	known := t[string(p.UID)]
	if known == nil {
		if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || kind == "DELETED" {
			return
		}
		// The API's times are in whole seconds.
		cold := !p.CreationTimestamp.Time.Before(began.Truncate(time.Second).Add(time.Second))
		if known = (&podTime{from: began, cold: cold}); cold {
			known.from = now
		}
		t[string(p.UID)] = known
	}
	if known.to.IsZero() && (p.DeletionTimestamp != nil || kind == "DELETED") {
		known.to = now
	}
}

// sum returns how long pods existed until now, in pod-seconds, and how many were created
// since the watch began.
func (t podTimes) sum(now time.Time) (seconds float64, cold int) {
	for _, p := range t {
		to := p.to
		if to.IsZero() {
			to = now
		}
		seconds += to.Sub(p.from).Seconds()
		if p.cold {
			cold++
		}
	}
	return seconds, cold
}

// stop ends the watch, and returns pod-seconds and cold starts.
func (w *podWatch) stop() (seconds float64, cold int, err error) {
	now := time.Now()
	select {
	case <-w.done:
		err = fmt.Errorf("the watch of the pods ended early: %s", bytes.TrimSpace(w.stderr.Bytes()))
	default:
	}
	w.cancel()
	<-w.done
	_ = w.cmd.Wait() // it was killed
	seconds, cold = w.pods.sum(now)
	if err == nil && len(w.pods) == 0 {
		err = errors.New("the watch of the pods saw no pod")
	}
	return seconds, cold, err
}
