package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"knative.dev/serving/pkg/activator"

	"libra.dev/libra/loadtest/bench/rig"
)

const (
	dialTimeout    = 5 * time.Second
	requestTimeout = 10 * time.Second
)

// requestTo returns a whole request as the ingress sends it to an activator.
func requestTo(revision, host string) []byte {
	return fmt.Appendf(nil, "POST / HTTP/1.1\r\nHost: %s\r\n%s: %s\r\n%s: %s\r\nContent-Length: 0\r\n\r\n",
		host, activator.RevisionHeaderNamespace, rig.Namespace, activator.RevisionHeaderName, revision)
}

// target is one activator and one revision behind it.
type target struct {
	addr    string
	request []byte
}

// client is one connection. It is this simple so that the cores are busy with the
// activator.
type client struct {
	conn    net.Conn
	in      *bufio.Reader
	request []byte
}

func dial(ctx context.Context, t target) (*client, error) {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, in: bufio.NewReader(conn), request: t.request}, nil
}

// do sends the request and reads its answer.
func (c *client) do() error {
	if err := c.conn.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // what there is of it says enough
		return fmt.Errorf("%s: %s", resp.Status, said)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// outcome is the result of one load.
type outcome struct {
	latencies []float64 // milliseconds
	failed    int
	failure   error // the first one
	length    time.Duration
}

// closed sends requests on several connections, each as soon as the one before it
// on its connection is answered.
func closed(ctx context.Context, t target, connections int, length time.Duration) (outcome, error) {
	return run(ctx, t, connections, func(int) func(start, last time.Time) (due time.Time, ok bool) {
		return func(start, last time.Time) (time.Time, bool) {
			return last, last.Sub(start) < length
		}
	})
}

// paced sends rate requests a second in total, spread evenly over the connections.
func paced(ctx context.Context, t target, connections int, rate float64, length time.Duration) (outcome, error) {
	return run(ctx, t, connections, func(connection int) func(start, last time.Time) (time.Time, bool) {
		n := connection
		return func(start, _ time.Time) (time.Time, bool) {
			at := time.Duration(float64(n) / rate * float64(time.Second))
			n += connections
			return start.Add(at), at < length
		}
	})
}

// run sends requests until every connection's schedule ends. A request that is due
// before the previous one on its connection is answered counts from when it was
// due, any other from when it is sent: the timer's lateness is not the activator's.
func run(ctx context.Context, t target, connections int, schedule func(connection int) func(start, last time.Time) (due time.Time, ok bool)) (outcome, error) {
	clients := make([]*client, connections)
	for i := range clients {
		c, err := dial(ctx, t)
		if err != nil {
			return outcome{}, err
		}
		defer c.conn.Close()
		clients[i] = c
	}
	var (
		group    sync.WaitGroup
		outcomes = make([]outcome, connections)
		errs     = make([]error, connections)
		start    = time.Now()
	)
	for i := range clients {
		next := schedule(i)
		group.Go(func() {
			errs[i] = outcomes[i].send(ctx, t, clients[i], func(last time.Time) (time.Time, bool) { return next(start, last) })
		})
	}
	group.Wait()
	all := outcome{length: time.Since(start)}
	for _, o := range outcomes {
		all.latencies = append(all.latencies, o.latencies...)
		all.failed += o.failed
		all.failure = cmp.Or(all.failure, o.failure)
	}
	return all, cmp.Or(errs...)
}

// send sends the requests that are due on one connection. After a failed request it
// makes a new connection.
func (o *outcome) send(ctx context.Context, t target, c *client, next func(last time.Time) (due time.Time, ok bool)) error {
	last := time.Now()
	for {
		due, ok := next(last)
		if !ok || ctx.Err() != nil {
			return ctx.Err()
		}
		from := due
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
			from = time.Now()
		}
		err := c.do()
		last = time.Now()
		if err == nil {
			o.latencies = append(o.latencies, rig.Milliseconds(last.Sub(from)))
			continue
		}
		if o.failed++; o.failure == nil {
			o.failure = err
		}
		c.conn.Close()
		fresh, err := dial(ctx, t)
		if err != nil {
			return err
		}
		*c = *fresh
	}
}
