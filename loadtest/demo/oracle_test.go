package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/pkg/api"
)

// The activator reads from an answer exactly what each input used.
func TestTheOracleIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var inputs []evaluation.Alone
		for n := range rapid.IntRange(1, 60).Draw(t, "inputs") {
			inputs = append(inputs, evaluation.Alone{
				Function: "mst", Input: n,
				Milliseconds:    float64(rapid.IntRange(0, 60_000).Draw(t, "ms")),
				CPUMilliseconds: float64(rapid.IntRange(0, 60_000_000).Draw(t, "us")) / 1000,
				Peak:            api.Resources{CPUMilli: rapid.Int64Range(0, 64_000).Draw(t, "cpu"), MemoryBytes: rapid.Int64Range(0, 1<<38).Draw(t, "memory")},
			})
		}
		answer, err := json.Marshal(exactly(inputs))
		if err != nil {
			t.Fatal(err)
		}
		table, err := predict.ParseTable(strings.NewReader(string(answer)))
		if err != nil {
			t.Fatal(err)
		}
		for n, a := range inputs {
			want := predict.Prediction{
				Demand:   a.Peak.Max(api.Resources{CPUMilli: 1, MemoryBytes: 1}),
				Duration: max(time.Millisecond, time.Duration(a.Milliseconds)*time.Millisecond),
				CPUTime:  max(time.Microsecond, time.Duration(int64(1000*a.CPUMilliseconds))*time.Microsecond),
			}
			if got := table.Lookup(int64(n)); got != want {
				t.Fatalf("of input %d is predicted %+v; it used %+v", n, got, want)
			}
		}
		if got := table.Lookup(api.UnknownSize); got != (predict.Prediction{}) {
			t.Fatalf("%+v is predicted of an input that is not told", got)
		}
	})
}

func TestTheOracleLeavesOthersToThePredictor(t *testing.T) {
	predictor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.Path, body)
	}))
	defer predictor.Close()
	at, err := url.Parse(predictor.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := newOracle(at)
	own := &demo{services: services{all: []string{"mst"}}}
	own.namespace, own.targets.revisions = "perfect", map[string]string{"mst": "perfect/mst-00001"}
	if err := o.learn(own, []string{"mst"}, []evaluation.Alone{{Function: "mst", Milliseconds: 7}, {Function: "bfs"}}); err != nil {
		t.Fatal(err)
	}
	if err := o.learn(own, []string{"pagerank"}, nil); err == nil || !strings.Contains(err.Error(), "no input of pagerank") {
		t.Errorf("knows a function of which nothing was run alone: %v", err)
	}
	if err := o.learn(own, []string{"mst"}, []evaluation.Alone{{Function: "mst", Input: 1}}); err == nil {
		t.Error("takes the second input for the first")
	}

	ask := func(model string) string {
		w := httptest.NewRecorder()
		o.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v2/models/"+model+"/infer", strings.NewReader("size")))
		return w.Body.String()
	}
	if got, want := ask("libra.mst-00001"), "POST /v2/models/libra.mst-00001/infer size"; got != want {
		t.Errorf("of a function that it does not know it says %q; the predictor said %q", got, want)
	}
	if err := o.unasked(own); err == nil || !strings.Contains(err.Error(), "perfect/mst") {
		t.Errorf("it was not asked, and says %v", err)
	}
	if got := ask("perfect.mst-00001"); !strings.Contains(got, oracleVersion) {
		t.Errorf("of a function that it knows it says %q", got)
	}
	if err := o.unasked(own); err != nil {
		t.Errorf("it was asked, and says %v", err)
	}
}
