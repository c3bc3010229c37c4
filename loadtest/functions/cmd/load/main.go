// Command load sends texts of several sizes to each of the given URLs, one after the other, and logs every minute how
// many were answered. It is the load of a release's samples, and runs in their cluster.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

const (
	requestTimeout = time.Minute
	// firstEvery is how often a function that has not answered yet is tried.
	firstEvery = time.Second
	// sizes is how many multiples of the least size are sent.
	sizes     = 8
	mostBytes = 16 << 20 / sizes // a function accepts no more
)

type load struct {
	urls  []string
	bytes int           // the least size
	pause time.Duration // between an answer and the next request
	first time.Duration // within which each has to answer once
	every time.Duration // between two reports
	http  *http.Client
	log   io.Writer

	mu     sync.Mutex
	counts map[string]count
}

type count struct{ answered, failed int }

func main() {
	l := &load{every: time.Minute, http: &http.Client{Timeout: requestTimeout}, log: os.Stdout}
	flag.IntVar(&l.bytes, "bytes", 200_000, fmt.Sprintf("smallest size of a request, in bytes; others are up to %d times as large", sizes))
	flag.DurationVar(&l.pause, "pause", 200*time.Millisecond, "time between an answer and the next request to the same URL")
	flag.DurationVar(&l.first, "first", 5*time.Minute, "time within which each URL must answer once")
	last := flag.Duration("for", 30*time.Minute, "how long to send requests")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Usage: load [flags] URL...\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	l.urls = flag.Args()
	if err := l.validate(); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := l.run(ctx, *last); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func (l *load) validate() error {
	if len(l.urls) == 0 {
		return errors.New("no URL: name one for each function, such as http://compression.shop")
	}
	if l.bytes < 1 || l.bytes > mostBytes {
		return fmt.Errorf("-bytes is %d; it must be from 1 to %d", l.bytes, mostBytes)
	}
	return nil
}

// run sends requests for a while, or until ctx ends. It is an error if a URL never answers.
func (l *load) run(ctx context.Context, last time.Duration) error {
	l.counts = map[string]count{}
	for _, url := range l.urls {
		if err := l.awaitFirst(ctx, url); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, last)
	defer cancel()
	var running sync.WaitGroup
	for _, url := range l.urls {
		running.Go(func() { l.send(ctx, url) })
	}
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	for reports := time.NewTicker(l.every); ; {
		select {
		case <-reports.C:
			l.report()
		case <-ended:
			l.report()
			return nil
		}
	}
}

func (l *load) awaitFirst(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, l.first)
	defer cancel()
	for {
		err := l.post(ctx, url, text(l.bytes))
		if err == nil {
			return nil
		}
		select {
		case <-time.After(firstEvery):
		case <-ctx.Done():
			return fmt.Errorf("%s has not answered: %w", url, err)
		}
	}
}

func (l *load) send(ctx context.Context, url string) {
	body := text(l.bytes * sizes)
	for n := 0; ctx.Err() == nil; n++ {
		err := l.post(ctx, url, body[:l.bytes*(1+n%sizes)])
		if ctx.Err() != nil {
			return // the run ended first
		}
		l.mu.Lock()
		c := l.counts[url]
		if err != nil {
			c.failed++
			fmt.Fprintln(l.log, err)
		} else {
			c.answered++
		}
		l.counts[url] = c
		l.mu.Unlock()
		select {
		case <-time.After(l.pause):
		case <-ctx.Done():
		}
	}
}

func (l *load) post(ctx context.Context, url string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := l.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return fmt.Errorf("%s: read the answer: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

func (l *load) report() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, url := range l.urls {
		fmt.Fprintf(l.log, "%s: %d requests were answered, %d failed\n", url, l.counts[url].answered, l.counts[url].failed)
	}
}

// text returns size bytes that compress to about half, as prose does, and are the same each time.
func text(size int) []byte {
	random := rand.New(rand.NewPCG(1, 1))
	var body bytes.Buffer
	for n := 0; body.Len() < size; n++ {
		fmt.Fprintf(&body, "%d: parcel %x went to %x\n", n, random.Uint64(), random.Uint64())
	}
	return body.Bytes()[:size]
}
