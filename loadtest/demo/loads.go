package main

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"time"

	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/functions/inputs"
	"libra.dev/libra/loadtest/trace"
)

// load is a workload's schedule and what its bodies are cut from.
type load struct {
	workload   string
	entries    []trace.Entry
	corpus     []byte
	scheduleAt string // paths
	corpusAt   string
}

// makeLoads makes the schedules.
func (e *evaluate) makeLoads() error {
	length := time.Duration(float64(e.requests) / e.perMinute * float64(time.Minute))
	t, err := e.loadTrace()
	if err != nil {
		return err
	}
	for _, w := range e.workloads {
		l, err := e.makeLoad(t, w, trace.Options{Seed: e.seed, PerMinute: e.perMinute, Length: length, Functions: workloads[w], Sample: traceFunctions, Skew: traceSkew})
		if err != nil {
			return err
		}
		e.loads = append(e.loads, l)
	}
	var all []string
	for _, f := range trace.Mixed {
		if slices.ContainsFunc(e.workloads, func(w string) bool { return slices.Contains(workloads[w], f) }) {
			all = append(all, f)
		}
	}
	e.learned, err = e.makeLoad(t, "learn", trace.Options{Seed: e.seed + learnSeed, PerMinute: learnPerMinute, Length: e.evaluateOptions.learnLength, Functions: all, Sample: traceFunctions})
	return err
}

func (e *evaluate) loadTrace() (trace.Trace, error) {
	if e.azure == "" {
		return trace.Generate(e.seed, trace.Azure2019, traceFunctions, traceMinutes)
	}
	return trace.LoadFolder(e.azure)
}

func (e *evaluate) makeLoad(t trace.Trace, name string, o trace.Options) (*load, error) {
	plan, err := trace.Plan(t, o)
	if err != nil {
		return nil, err
	}
	l := &load{workload: name, scheduleAt: e.path(name + "-schedule.json"), corpusAt: e.path(name + "-corpus.bin")}
	draw := func(function string, n int) (inputs.Input, error) { return inputs.Draw(function, o.Seed, uint64(n)) }
	if l.entries, l.corpus, err = trace.Fill(plan, inputsPerFunction, draw, inputs.Corpus()); err != nil {
		return nil, err
	}
	text, err := json.Marshal(l.entries)
	if err != nil {
		return nil, err
	}
	return l, errors.Join(os.WriteFile(l.scheduleAt, text, 0o644), os.WriteFile(l.corpusAt, l.corpus, 0o644))
}

// requests are the schedule's as the demo has them.
func (l *load) requests() []schedule.Request {
	var requests []schedule.Request
	for _, entry := range l.entries {
		requests = append(requests, entry.Request)
	}
	return requests
}
