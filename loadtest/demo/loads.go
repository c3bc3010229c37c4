package main

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/trace"
)

// load is the schedule of some requests, and what their bodies are cut from, as k6 reads
// them.
type load struct {
	name       string
	entries    []trace.Entry
	scheduleAt string // paths
	corpusAt   string
}

// loadOf is of requests of which each has an input of its own.
func (d *demo) loadOf(name string, requests []schedule.Request) (*load, error) {
	l := &load{name: name, scheduleAt: d.path(name + "-schedule.json"), corpusAt: d.path(name + "-corpus.bin")}
	for _, r := range requests {
		l.entries = append(l.entries, trace.Entry{Request: r, Input: r.N})
	}
	text, err := json.Marshal(l.entries)
	if err != nil {
		return nil, err
	}
	return l, errors.Join(os.WriteFile(l.scheduleAt, text, 0o644), os.WriteFile(l.corpusAt, d.corpus, 0o644))
}

// length is from the start until the last request is due.
func (l *load) length() time.Duration {
	return time.Duration(l.entries[len(l.entries)-1].AtMS) * time.Millisecond
}
