package main

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"sync"
	"time"

	"libra.dev/libra/loadtest/functions/inputs"
)

const (
	warmTimeout = 2 * time.Minute
	// A path is warm if it answers right this often in a row.
	warmAnswers = 3

	// requestTimeout is when an unanswered request has failed: later than a block's
	// queue needs to drain.
	requestTimeout = 90 * time.Second
)

// sender sends requests over connections that it keeps. It is part of this process,
// instead of k6, because CPU that the sender uses is CPU that the functions do not have.
type sender struct {
	http    *http.Client
	gateway string // URL
}

// proxy returns the proxy that a request goes through; nil means none.
type proxy func(*http.Request) (*url.URL, error)

func newSender(gateway string, through proxy) sender {
	return sender{gateway: gateway, http: &http.Client{Transport: &http.Transport{
		Proxy: through, MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, IdleConnTimeout: time.Minute, DisableCompression: true,
	}}}
}

// newSender returns a sender to the functions. The box's addresses are this machine's
// own, so no proxy leads to them.
func (d *demo) newSender() sender {
	if d.boxed() {
		return newSender(d.targets.gateway, nil)
	}
	return newSender(d.targets.gateway, http.ProxyFromEnvironment)
}

// message is a request to send.
type message struct {
	due   time.Duration // since the start
	host  string        // of the function
	input inputs.Input
	// number is the input's number among its function's inputs, if the request states
	// it.
	number string
}

// fate is the outcome of a request.
type fate struct {
	late, took time.Duration // took is from when it was due
	status     int           // 0 when there was no answer
	err        string        // empty when the answer was right
}

// replay sends each message when it is due, regardless of the ones before it, and
// returns when all have been answered or have failed.
func (s sender) replay(ctx context.Context, messages []message) ([]fate, error) {
	fates := make([]fate, len(messages))
	start := time.Now()
	var group sync.WaitGroup
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i, m := range messages {
		timer.Reset(time.Until(start.Add(m.due)))
		select {
		case <-ctx.Done():
			group.Wait()
			return nil, ctx.Err()
		case <-timer.C:
		}
		group.Go(func() { fates[i] = s.send(ctx, start.Add(m.due), m) })
	}
	group.Wait()
	return fates, ctx.Err()
}

// send sends a message, and counts its time from due.
func (s sender) send(ctx context.Context, due time.Time, m message) fate {
	ctx, cancel := context.WithDeadline(ctx, due.Add(requestTimeout))
	defer cancel()
	f := fate{late: time.Since(due)}
	var err error
	f.status, err = s.exchange(ctx, m)
	f.took = time.Since(due)
	if err != nil {
		f.err = err.Error()
	}
	return f
}

func (s sender) exchange(ctx context.Context, m message) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateway+"/", bytes.NewReader(m.input.Body))
	if err != nil {
		return 0, err
	}
	req.Host = m.host
	if m.number != "" {
		req.Header.Set(inputHeader, m.number)
	}
	return inputs.Exchange(s.http, req, m.input.Expect)
}
