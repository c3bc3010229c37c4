package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
)

func TestObservationsAreJoinedByRequest(t *testing.T) {
	// As redis-cli --json prints a stream.
	const page = `[
["1-0",["v","1","data","{\"id\":\"libra-1-0\",\"lent\":{\"cpu_milli\":400,\"memory_bytes\":0},\"borrowed\":{\"cpu_milli\":0,\"memory_bytes\":0}}"]],
["2-0",["v","1","data","{\"id\":\"libra-1-1.x8k2\",\"borrowed\":{\"cpu_milli\":300}}"]],
["3-0",["v","1","data","{\"id\":\"libra-1-1\",\"borrowed\":{\"cpu_milli\":100}}"]],
["4-0",["v","1","data","{\"id\":\"somebody-else\",\"lent\":{\"cpu_milli\":900}}"]],
["5-0",["v","99","shape","unknown"]]
]`
	var entries []entry
	if err := json.Unmarshal([]byte(page), &entries); err != nil {
		t.Fatal(err)
	}
	found := map[string]report.Outcome{}
	for _, e := range entries {
		if err := note(found, map[string]bool{"libra-1-0": true, "libra-1-1": true, "libra-1-2": true}, e); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]report.Outcome{
		"libra-1-0": {Lent: api.Resources{CPUMilli: 400}},
		"libra-1-1": {Borrowed: api.Resources{CPUMilli: 300}},
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if entries[4].id != "5-0" {
		t.Errorf("the last entry is %s", entries[4].id)
	}
}

func TestAnObservationThatIsNoneIsAnError(t *testing.T) {
	err := note(nil, nil, entry{id: "7-0", fields: map[string]string{"v": "1", "data": "{"}})
	if err == nil || !strings.Contains(err.Error(), "7-0") {
		t.Errorf("got %v, want an error that names the entry", err)
	}
	var e entry
	if err := json.Unmarshal([]byte(`["8-0",["v"]]`), &e); err == nil || !strings.Contains(err.Error(), "8-0") {
		t.Errorf("got %v, want an error that names the entry", err)
	}
}

func TestLimitChanges(t *testing.T) {
	pod := func(name, function, limit string) string {
		return `{"type":"MODIFIED","object":{"metadata":{"name":"` + name + `","labels":{"serving.knative.dev/service":"` + function + `"}},
"spec":{"containers":[{"name":"queue-proxy"},{"name":"user-container","resources":{"limits":{"cpu":"` + limit + `"}}}]}}}`
	}
	events := strings.Join([]string{
		pod("u-1", "uploader", "700m"),
		pod("c-1", "compression", "500m"),
		pod("u-1", "uploader", "700m"), // something else changed
		pod("u-1", "uploader", "300m"),
		pod("c-1", "compression", "0.9"),
	}, "\n") + `{"type":"MODI` // stopped in the middle
	at := time.Unix(0, 0)
	got := limitChanges(strings.NewReader(events), func() time.Time { return at })
	want := []report.LimitChange{
		{At: at, Function: "uploader", CPUMilli: 700},
		{At: at, Function: "compression", CPUMilli: 500},
		{At: at, Function: "uploader", CPUMilli: 300},
		{At: at, Function: "compression", CPUMilli: 900},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRestartsSince(t *testing.T) {
	before := map[string]int{"a": 1, "gone": 3}
	after := map[string]int{"a": 2, "new": 1}
	if got := restartsSince(before, after); got != 2 {
		t.Errorf("got %d, want 2", got)
	}
}
