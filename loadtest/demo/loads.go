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

// load is the schedule of some requests, and what their bodies are cut from.
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
	draw := func(function string, n int) (inputs.Input, error) { return inputs.Draw(function, o.Seed, uint64(n)) }
	entries, corpus, err := trace.Fill(plan, inputsPerFunction, draw, inputs.Corpus())
	if err != nil {
		return nil, err
	}
	return e.newLoad(name, entries, corpus)
}

// newLoad writes what k6 reads.
func (d *demo) newLoad(name string, entries []trace.Entry, corpus []byte) (*load, error) {
	l := &load{workload: name, entries: entries, corpus: corpus, scheduleAt: d.path(name + "-schedule.json"), corpusAt: d.path(name + "-corpus.bin")}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, err
	}
	return l, errors.Join(os.WriteFile(l.scheduleAt, text, 0o644), os.WriteFile(l.corpusAt, corpus, 0o644))
}

// loadOf is of requests of which each has an input of its own.
func (d *demo) loadOf(name string, requests []schedule.Request) (*load, error) {
	var entries []trace.Entry
	for _, r := range requests {
		entries = append(entries, trace.Entry{Request: r, Input: r.N})
	}
	return d.newLoad(name, entries, d.corpus)
}

// length is from the start until the last request is due.
func (l *load) length() time.Duration {
	return time.Duration(l.entries[len(l.entries)-1].AtMS) * time.Millisecond
}

// requests are the schedule's, without what they are told apart by.
func (l *load) requests() []schedule.Request {
	var requests []schedule.Request
	for _, entry := range l.entries {
		requests = append(requests, entry.Request)
	}
	return requests
}
