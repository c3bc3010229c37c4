package k6

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var mixed = []entry{
	cut(0, 0, "uploader", "small", 100, 1000),
	inline(1, 10, "pagerank", `{"seed":1}`),
	cut(2, 20, "uploader", "large", 7, 100_000),
	cut(3, 30, "dnavisualization", "medium", 0, 500),
	inline(4, 40, "pagerank", `{"seed":2}`),
}

func TestReplaySendsTheSchedule(t *testing.T) {
	s := newServer(t)
	// One request at a time, so that they arrive in the schedule's order.
	o := s.run(t, "replay.js", mixed, map[string]string{"VUS": "1", "RUN": "r1"})
	if o.code != 0 || !o.Passed || len(o.Broken) != 0 {
		t.Fatalf("k6 ended with %d, broken: %v\n%s", o.code, o.Broken, o.output)
	}
	if diff := cmp.Diff([]string{"r1-0", "r1-1", "r1-2", "r1-3", "r1-4"}, s.ids()); diff != "" {
		t.Fatalf("requests in their order (-want +got):\n%s", diff)
	}
	for i, e := range mixed {
		want := []byte(e.Body)
		if e.Body == "" {
			want = corpus[e.Offset : e.Offset+e.Size]
		}
		if got := s.got[i]; got.host != e.Function+".default.example.com" || !bytes.Equal(got.body, want) {
			t.Errorf("request %d: %d bytes to %s, want %d to %s", i, len(got.body), got.host, len(want), e.Function)
		}
	}
	if o.Script != "replay" || o.Run != "r1" || o.Planned != 5 || o.Sent != 5 || o.Unsent != 0 || o.Failed != 0 || o.Wrong != 0 || o.Late != 0 {
		t.Errorf("summary: %+v", o.summary)
	}
	if o.Response == nil || o.Response.Count != 5 || !(o.Response.P50 > 0 && o.Response.P50 <= o.Response.P99 && o.Response.P99 <= o.Response.Max) {
		t.Errorf("response times: %+v", o.Response)
	}
	sent := map[string]int{}
	for name, f := range o.Functions {
		sent[name] = f.Sent
		for class, g := range f.SizeClasses {
			sent[name+"/"+class] = g.Sent
			if g.Response == nil || g.Response.Count != g.Sent {
				t.Errorf("%s/%s: %d sent, response times %+v", name, class, g.Sent, g.Response)
			}
		}
	}
	want := map[string]int{"uploader": 2, "uploader/small": 1, "uploader/large": 1, "pagerank": 2, "pagerank/any": 2, "dnavisualization": 1, "dnavisualization/medium": 1}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("sent by function and size class (-want +got):\n%s", diff)
	}
	if !strings.Contains(o.output, "5 of 5 requests sent") || !strings.Contains(o.output, "passed") {
		t.Errorf("output:\n%s", o.output)
	}
}

// An unanswered request must not delay the requests after it.
func TestReplayIsAnOpenLoop(t *testing.T) {
	s := newServer(t)
	all := make(chan struct{})
	s.answer = func(n int, _ received, _ http.ResponseWriter) bool {
		if n == len(mixed)-1 {
			close(all)
		}
		<-all
		return false
	}
	if o := s.run(t, "replay.js", mixed, nil); o.code != 0 || o.Sent != len(mixed) || o.Failed != 0 {
		t.Errorf("k6 ended with %d: %+v\n%s", o.code, o.summary, o.output)
	}
}

func TestReplayCountsLateSends(t *testing.T) {
	s := newServer(t)
	s.answer = func(n int, _ received, _ http.ResponseWriter) bool {
		if n == 0 {
			time.Sleep(2 * time.Second) // a slow answer; the script has at most one request in flight
		}
		return false
	}
	o := s.run(t, "replay.js", mixed, map[string]string{"VUS": "1", "LATE_MS": "1000"})
	// On a slow machine the first may be late, too.
	if o.Late < 4 || o.Sent != 5 || o.LateMS.Max < 1900 {
		t.Errorf("%d late sends of %d, at most %v ms; want at least 4 and 1900 ms", o.Late, o.Sent, o.LateMS.Max)
	}
	if f := o.Functions["pagerank"]; f.Late != 2 || f.SizeClasses["any"].Late != 2 {
		t.Errorf("late to pagerank: %+v", f)
	}
	if o.code == 0 || o.Passed || !strings.Contains(strings.Join(o.Broken, " "), "late_sends") {
		t.Errorf("k6 ended with %d, broken: %v", o.code, o.Broken)
	}
	if o := newServer(t).run(t, "replay.js", mixed[:1], map[string]string{"MAX_LATE": "1"}); o.code != 0 {
		t.Errorf("all may be late, and k6 ended with %d\n%s", o.code, o.output)
	}
}

func TestReplayCountsWrongAndFailedAnswers(t *testing.T) {
	answers := map[string]func(w http.ResponseWriter){
		"uploader-other":   func(w http.ResponseWriter) { w.Write([]byte(`{"did":{"bytes":1000,"crc32":1}}`)) },
		"uploader-nothing": func(w http.ResponseWriter) { w.Write([]byte(`{}`)) },
		"uploader-html":    func(w http.ResponseWriter) { w.Write([]byte(`<html>`)) },
		"pagerank-503":     func(w http.ResponseWriter) { http.Error(w, "overloaded", http.StatusServiceUnavailable) },
		"pagerank-301": func(w http.ResponseWriter) {
			w.Header().Set("Location", "/")
			w.WriteHeader(http.StatusMovedPermanently)
		},
		"pagerank-cut": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	}
	var schedule []entry
	for name := range answers {
		schedule = append(schedule, cut(len(schedule), 0, name, "small", 0, 1000))
	}
	schedule = append(schedule, cut(len(schedule), 0, "right", "small", 0, 1000))
	s := newServer(t)
	s.answer = func(_ int, r received, w http.ResponseWriter) bool {
		if answer, ok := answers[r.function]; ok {
			answer(w)
			return true
		}
		return false
	}
	o := s.run(t, "replay.js", schedule, nil)
	if o.Sent != 7 || o.Wrong != 3 || o.Failed != 3 || o.Response.Count != 1 {
		t.Errorf("%d sent, %d wrong, %d failed, %+v; want 7, 3, 3 and one right answer", o.Sent, o.Wrong, o.Failed, o.Response)
	}
	for name := range answers {
		f := o.Functions[name]
		if wrong := strings.HasPrefix(name, "uploader"); f.Sent != 1 || (f.Wrong == 1) != wrong || (f.Failed == 1) == wrong || f.Response != nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if broken := strings.Join(o.Broken, " "); o.code == 0 || o.Passed || !strings.Contains(broken, "wrong_answers") || !strings.Contains(broken, "failed_requests") {
		t.Errorf("k6 ended with %d, broken: %v", o.code, o.Broken)
	}
	for _, want := range []string{"crc32 is 1, not", "status 503: overloaded", "status 301", "not that of a function"} {
		if !strings.Contains(o.output, want) {
			t.Errorf("k6 does not say %q:\n%s", want, o.output)
		}
	}
}

func TestReplayWritesALinePerRequest(t *testing.T) {
	s := newServer(t)
	o := s.run(t, "replay.js", mixed, map[string]string{"VUS": "1", "REQUEST_LINES": "1"})
	var lines []string
	for line := range strings.Lines(o.output) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var r struct {
			N         int
			Function  string
			SizeClass string `json:"size_class"`
			RequestID string `json:"request_id"`
			Status    int
			Error     string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if e := mixed[len(lines)]; r.N != e.N || r.Function != e.Function || r.SizeClass != e.SizeClass || r.Status != 200 || r.Error != "" {
			t.Errorf("line %d: %s", len(lines), line)
		}
		lines = append(lines, r.RequestID)
	}
	if diff := cmp.Diff(s.ids(), lines); diff != "" {
		t.Errorf("IDs of the requests (-sent +lines):\n%s", diff)
	}
}

func TestTargets(t *testing.T) {
	s := newServer(t)
	address := strings.TrimPrefix(s.URL, "http://")
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"host header of all": {map[string]string{"HOST_HEADER": "one.example.com"}, "one.example.com/"},
		"of each":            {map[string]string{"HOST_HEADER": "", "HOSTS": `{"uploader":"up.example.com"}`}, "up.example.com/"},
		"the URL's own":      {map[string]string{"HOST_HEADER": ""}, address + "/"},
		"URL of each":        {map[string]string{"HOST_HEADER": "", "GATEWAY": s.URL + "/{function}"}, address + "/uploader/"},
	} {
		t.Run(name, func(t *testing.T) {
			s.got = nil
			o := s.run(t, "smoke.js", mixed[:1], c.env)
			if o.code != 0 || len(s.got) != 1 || s.got[0].host+s.got[0].path != c.want {
				t.Errorf("k6 ended with %d, requests: %+v, want one to %s\n%s", o.code, s.got, c.want, o.output)
			}
		})
	}
}

func TestSmokeSendsEachFunctionItsSmallest(t *testing.T) {
	s := newServer(t)
	o := s.run(t, "smoke.js", append(mixed, cut(5, 1_000_000, "uploader", "small", 50, 999)), nil)
	if o.code != 0 || !o.Passed || o.Script != "smoke" || o.Planned != 3 || o.Sent != 3 {
		t.Errorf("k6 ended with %d: %+v\n%s", o.code, o.summary, o.output)
	}
	got := map[string]int{}
	for _, r := range s.got {
		got[r.function] = len(r.body)
	}
	if diff := cmp.Diff(map[string]int{"uploader": 999, "pagerank": 10, "dnavisualization": 500}, got); diff != "" {
		t.Errorf("bytes to each function (-want +got):\n%s", diff)
	}
}

func TestSoakRepeatsTheSchedule(t *testing.T) {
	s := newServer(t)
	// A round takes 1.25 s: 6 s hold four and the first second of the next.
	schedule := []entry{
		cut(0, 0, "uploader", "small", 0, 1000), cut(1, 300, "uploader", "small", 0, 1001),
		cut(2, 600, "uploader", "small", 0, 1002), cut(3, 900, "uploader", "small", 0, 1003), cut(4, 1000, "uploader", "small", 0, 1004),
	}
	o := s.run(t, "soak.js", schedule, map[string]string{"DURATION": "6s", "VUS": "1"})
	if o.code != 0 || o.Planned != 24 || o.Sent != 24 {
		t.Fatalf("k6 ended with %d: %+v\n%s", o.code, o.summary, o.output)
	}
	for i, r := range s.got {
		if want := 1000 + i%5; len(r.body) != want {
			t.Errorf("request %d has %d bytes, want %d", i, len(r.body), want)
		}
	}
	var parts []int
	for _, p := range o.Parts {
		parts = append(parts, p.Sent)
	}
	if diff := cmp.Diff([]int{5, 5, 5, 5}, parts); diff != "" {
		t.Errorf("requests by quarter of the whole rounds (-want +got):\n%s", diff)
	}
	if o.Drift == nil || o.Drift.P50 <= 0 || o.Drift.P99 <= 0 {
		t.Errorf("drift: %+v", o.Drift)
	}
}

// With fewer than four rounds, the quarters would not have the same requests in them.
func TestShortSoakHasNoDrift(t *testing.T) {
	s := newServer(t)
	o := s.run(t, "soak.js", []entry{cut(0, 0, "uploader", "small", 0, 1000)}, map[string]string{"DURATION": "2s"})
	if o.code != 0 || o.Sent != 2 || o.Drift != nil || len(o.Parts) > 0 {
		t.Errorf("k6 ended with %d: %+v\n%s", o.code, o.summary, o.output)
	}
}

func TestBurstSendsAllAtOnce(t *testing.T) {
	s := newServer(t)
	// The server answers no request of a burst before the whole burst has arrived.
	var mu sync.Mutex
	gates := []chan struct{}{make(chan struct{}), make(chan struct{})}
	s.answer = func(n int, _ received, _ http.ResponseWriter) bool {
		mu.Lock()
		gate := gates[n/7]
		if n%7 == 6 {
			close(gate)
		}
		mu.Unlock()
		<-gate
		return false
	}
	o := s.run(t, "burst.js", mixed, map[string]string{"BURSTS": "2", "SIZE": "7", "EVERY": "1s"})
	if o.code != 0 || o.Planned != 14 || o.Sent != 14 || o.Failed != 0 {
		t.Fatalf("k6 ended with %d: %+v\n%s", o.code, o.summary, o.output)
	}
	for i, p := range o.Parts {
		if p.Part != i+1 || p.Sent != 7 || p.Response == nil {
			t.Errorf("burst %d: %+v", i+1, p)
		}
	}
	if len(o.Parts) != 2 {
		t.Errorf("%d parts, want 2", len(o.Parts))
	}
	// 14 requests of a schedule of five: the first four are sent three times.
	sent := map[string]int{}
	for _, r := range s.got {
		sent[r.function]++
	}
	if diff := cmp.Diff(map[string]int{"uploader": 6, "pagerank": 5, "dnavisualization": 3}, sent); diff != "" {
		t.Errorf("requests by function (-want +got):\n%s", diff)
	}
}

func TestScriptsSayWhatIsMissing(t *testing.T) {
	backwards := []entry{mixed[2], mixed[0]}
	nameless := []entry{{Function: "a b", Size: 1}}
	bodyless := []entry{{Function: "pagerank", Size: -1}}
	beyond := []entry{{Function: "pagerank", Size: 10, Offset: len(corpus) - 5}}
	for name, c := range map[string]struct {
		script   string
		schedule []entry
		env      map[string]string
		want     []string
	}{
		"no schedule":      {"replay.js", mixed, map[string]string{"SCHEDULE": ""}, []string{"SCHEDULE is not set", "docs/loadtest.md"}},
		"another schedule": {"soak.js", mixed, map[string]string{"SCHEDULE": "nowhere.json"}, []string{"SCHEDULE ", "nowhere.json", "trace schedule"}},
		"empty schedule":   {"replay.js", []entry{}, nil, []string{"at least one request"}},
		"not in order":     {"replay.js", backwards, nil, []string{"request 1", "at_ms is 0", "20 or more"}},
		"bad name":         {"smoke.js", nameless, nil, []string{"request 0", `function is "a b"`, "letters"}},
		"no body":          {"burst.js", bodyless, nil, []string{"request 0", "size is -1"}},
		"no gateway":       {"replay.js", mixed, map[string]string{"GATEWAY": ""}, []string{"GATEWAY is not set"}},
		"bad gateway":      {"replay.js", mixed, map[string]string{"GATEWAY": "10.0.0.7"}, []string{`GATEWAY is "10.0.0.7"`, "http://10.0.0.7"}},
		"bad hosts":        {"replay.js", mixed, map[string]string{"HOSTS": "x=y"}, []string{"HOSTS is not JSON", "uploader.default"}},
		"unknown host":     {"replay.js", mixed, map[string]string{"HOST_HEADER": "", "HOSTS": `{"uploader":"u"}`}, []string{"no Host header for function dnavisualization", "uploader"}},
		"no corpus":        {"replay.js", mixed[:1], map[string]string{"CORPUS": ""}, []string{"CORPUS is not set", "request 0"}},
		"another corpus":   {"replay.js", beyond, nil, []string{"CORPUS lacks the input"}},
		"absent corpus":    {"replay.js", mixed, map[string]string{"CORPUS": "nowhere.bin"}, []string{"CORPUS", "nowhere.bin", "trace schedule"}},
		"bad number":       {"replay.js", mixed, map[string]string{"VUS": "many"}, []string{`VUS is "many"`, "1 to 5000"}},
		"short duration":   {"soak.js", []entry{cut(0, 1500, "uploader", "small", 0, 1000)}, map[string]string{"DURATION": "1s"}, []string{"DURATION", "1500 ms"}},
		"bad duration":     {"soak.js", mixed, map[string]string{"DURATION": "5 minutes"}, []string{`DURATION is "5 minutes"`, "30m"}},
		"bad burst":        {"burst.js", mixed, map[string]string{"SIZE": "2.5"}, []string{`SIZE is "2.5"`, "whole"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			o := s.run(t, c.script, c.schedule, c.env)
			if o.code == 0 || len(s.got) > 0 {
				t.Errorf("k6 ended with %d, and %d requests were sent", o.code, len(s.got))
			}
			for _, want := range c.want {
				if !strings.Contains(o.output, want) {
					t.Errorf("k6 does not say %q:\n%s", want, o.output)
				}
			}
		})
	}
}
