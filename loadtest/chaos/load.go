package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/functions/inputs"
)

const (
	// loadLength is longer than any trial.
	loadLength = 4 * time.Minute
	// requestTimeout is how long a client waits for an answer.
	requestTimeout = 50 * time.Second

	warmTimeout = 2 * time.Minute
	// A path is warm when it answers this often in a row.
	warmAnswers = 3
)

// sender knows how to reach the functions.
type sender struct {
	client  *http.Client
	gateway string            // URL
	hosts   map[string]string // Host header of each function
	corpus  []byte
}

// load sends the requests of a schedule when they are due, whatever happened to
// earlier ones, until it is stopped.
type load struct {
	stopSending context.CancelFunc
	sending     chan struct{} // closed when no more are sent
	answered    sync.WaitGroup

	mu       sync.Mutex
	sent     []request
	inFlight map[string]int // by function
}

func (s *sender) start(ctx context.Context, seed uint64) *load {
	sendCtx, stop := context.WithCancel(ctx)
	l := &load{stopSending: stop, sending: make(chan struct{}), inFlight: map[string]int{}}
	requests := schedule.Generate(seed, loadLength, s.corpus)
	start := time.Now()
	go func() {
		defer close(l.sending)
		for _, r := range requests {
			if rig.Pause(sendCtx, time.Until(start.Add(time.Duration(r.AtMS)*time.Millisecond))) != nil {
				return
			}
			// A request that was sent runs to its end.
			l.answered.Go(func() { l.send(context.WithoutCancel(ctx), s, r) })
		}
	}()
	return l
}

func (l *load) send(ctx context.Context, s *sender, r schedule.Request) {
	l.mu.Lock()
	l.inFlight[r.Function]++
	l.mu.Unlock()
	done := request{function: r.Function, sent: time.Now()}
	err := s.send(ctx, r)
	done.ended = time.Now()
	if err != nil {
		done.err = err.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight[r.Function]--
	l.sent = append(l.sent, done)
}

// warm sends each function its smallest request until it answers correctly. Later
// failures are then the fault's doing.
func (s *sender) warm(ctx context.Context, seed uint64) error {
	for function, r := range schedule.Smallest(schedule.Generate(seed, time.Minute, s.corpus)) {
		inARow := 0
		err := rig.Eventually(ctx, warmTimeout, func(ctx context.Context) error {
			for ; inARow < warmAnswers; inARow++ {
				if err := s.send(ctx, r); err != nil {
					inARow = 0
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s does not answer before the fault: %w", function, err)
		}
	}
	return nil
}

// send sends one request and checks that the answer is right.
func (s *sender) send(ctx context.Context, r schedule.Request) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateway+"/", bytes.NewReader(r.BodyFrom(s.corpus)))
	if err != nil {
		return err
	}
	req.Host = s.hosts[r.Function]
	_, err = inputs.Exchange(s.client, req, r.Expect)
	return err
}

// busy reports whether a request to a function is in flight.
func (l *load) busy(function string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inFlight[function] > 0
}

// optedIn reports whether a request to any function that opted in is in flight.
func (l *load) optedIn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(schedule.Functions, func(f string) bool { return l.inFlight[f] > 0 })
}

// stop waits for the requests in flight, and returns the outcomes of all.
func (l *load) stop() []request {
	l.stopSending()
	<-l.sending
	l.answered.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}
