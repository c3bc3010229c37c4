package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func podOf(t *testing.T, text string) corev1.Pod {
	t.Helper()
	var p corev1.Pod
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAPlaceIsWholeWithOneReadyPodOfEach(t *testing.T) {
	const label = `"labels":{"serving.knative.dev/service":"mst"}`
	ready := podOf(t, `{"metadata":{`+label+`},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	waiting := podOf(t, `{"metadata":{`+label+`},"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	ending := podOf(t, `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z",`+label+`},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	s := services{all: []string{"mst"}}
	for name, c := range map[string]struct {
		pods []corev1.Pod
		ok   bool
	}{
		"one":                  {[]corev1.Pod{ready}, true},
		"none":                 {nil, false},
		"one that waits":       {[]corev1.Pod{waiting}, false},
		"two":                  {[]corev1.Pod{ready, ready}, false},
		"one and what it left": {[]corev1.Pod{ready, ending}, false},
	} {
		if err := s.whole(c.pods); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "mst") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestKillsAreThoseForWantOfMemory(t *testing.T) {
	pod := func(last, now string, restarts string) []corev1.Pod {
		return []corev1.Pod{podOf(t, `{"metadata":{"uid":"a"},"status":{"containerStatuses":[
			{"name":"queue-proxy","restartCount":9,"lastState":{"terminated":{"reason":"OOMKilled"}}},
			{"name":"user-container","restartCount":`+restarts+`,"lastState":{`+last+`},"state":{`+now+`}}]}}`)}
	}
	const killed, running = `"terminated":{"reason":"OOMKilled"}`, `"running":{}`
	before := killsOf(pod("", running, "0"))
	for name, c := range map[string]struct {
		pods []corev1.Pod
		want int
	}{
		"none":                    {pod("", running, "0"), 0},
		"two":                     {pod(killed, running, "2"), 2},
		"one, not restarted yet":  {pod("", killed, "0"), 1},
		"the second, not yet":     {pod(killed, killed, "1"), 2},
		"restarted for a failure": {pod(`"terminated":{"reason":"Error"}`, running, "3"), 0},
	} {
		if got := killsOf(c.pods).since(before); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func TestPodSecondsAreFromTheNodeToTheEnd(t *testing.T) {
	began := time.Date(2026, 1, 1, 12, 0, 0, 300e6, time.UTC)
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
	pod := func(uid string, created time.Time, node string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), CreationTimestamp: metav1.NewTime(created.Truncate(time.Second))}, Spec: corev1.PodSpec{NodeName: node}}
	}
	times := podTimes{}
	old := pod("old", at(-60), "box")
	times.note(at(0.1), began, "ADDED", old)
	fresh := pod("fresh", at(2), "")
	times.note(at(2), began, "ADDED", fresh)
	fresh.Spec.NodeName = "box"
	times.note(at(3), began, "MODIFIED", fresh)
	fresh.DeletionTimestamp = &metav1.Time{Time: at(7)}
	times.note(at(7), began, "MODIFIED", fresh)
	times.note(at(9), began, "DELETED", fresh)
	times.note(at(9), began, "DELETED", pod("gone", at(-90), "box"))
	seconds, cold := times.sum(at(10))
	if seconds != 14 || cold != 1 {
		t.Errorf("%v s, %d cold; want 10 of the old and 4 of the new", seconds, cold)
	}
}
