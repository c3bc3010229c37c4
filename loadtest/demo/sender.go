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
	// A warm path answers this often in a row.
	warmAnswers = 3

	// requestTimeout is when a request has failed that is not answered: longer than what
	// queues up in a block takes.
	requestTimeout = 90 * time.Second
)

// sender sends requests, over connections that it keeps. It is of this process, and not
// k6, because what it uses of the CPU is what the functions have not.
type sender struct {
	http    *http.Client
	gateway string // URL
}

// proxy says through which proxy a request goes; nil is through none.
type proxy func(*http.Request) (*url.URL, error)

func newSender(gateway string, through proxy) sender {
	return sender{gateway: gateway, http: &http.Client{Transport: &http.Transport{
		Proxy: through, MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, IdleConnTimeout: time.Minute, DisableCompression: true,
	}}}
}

// newSender sends to the functions. The box's addresses are this machine's own.
func (d *demo) newSender() sender {
	if d.boxed() {
		return newSender(d.targets.gateway, nil)
	}
	return newSender(d.targets.gateway, http.ProxyFromEnvironment)
}

// message is a request as it is sent.
type message struct {
	due   time.Duration // since the start
	host  string        // of the function
	input inputs.Input
	// number is the input's among its function's, where it is told.
	number string
}

// fate is what became of a request.
type fate struct {
	late, took time.Duration // took is from when it was due
	status     int           // 0 when there was no answer
	err        string        // empty when the answer was right
}

// replay sends each message when it is due, whatever became of those before it, and
// returns when all are answered, or have failed.
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

// send sends a message that is due.
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
