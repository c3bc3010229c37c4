// Command part does what an activator or a node agent does in the pools of some nodes. It is
// built from two commits, so it uses nothing of the pool that is new.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
)

const (
	nodes       = 3
	slots       = 4 // pairs of a donor and a borrower at a time on each node
	callTimeout = time.Second
	tellEvery   = 50 * time.Millisecond
)

var (
	allocation = api.Resources{CPUMilli: 1000, MemoryBytes: 512 << 20}
	spare      = api.Resources{CPUMilli: 500, MemoryBytes: 256 << 20}
)

// told is what the part has done so far. It is printed as one line each time.
type told struct {
	// Borrowed counts Begins that borrowed something.
	Calls, Failed, Borrowed int64
	Error                   string // the first
}

type part struct {
	pools *pool.Redis
	name  string

	mu sync.Mutex
	told
}

func main() {
	redis := flag.String("redis", "", "address of Redis")
	role := flag.String("role", "", "activator or agent")
	name := flag.String("name", "", "unique name of this part")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	p := &part{pools: pool.NewRedis(redisconn.MustParse(*redis)), name: *name}
	defer p.pools.Close() //nolint:errcheck // the process ends
	var work sync.WaitGroup
	for i := range nodes {
		node := fmt.Sprint("node-", i)
		switch *role {
		case "agent":
			work.Go(func() { p.every(ctx, time.Second, func() { p.beat(node) }) })
		case "activator":
			work.Go(func() {
				p.every(ctx, time.Second, func() { p.call(func(ctx context.Context) error { return p.pools.Renew(ctx, node, p.name) }) })
			})
			for slot := range slots {
				work.Go(func() { p.every(ctx, 5*time.Millisecond, func() { p.invoke(node, slot) }) })
			}
		default:
			fmt.Fprintf(os.Stderr, "--role is %q; it must be activator or agent\n", *role)
			os.Exit(2)
		}
	}
	p.every(ctx, tellEvery, p.tell)
	work.Wait()
	p.tell()
}

func (p *part) every(ctx context.Context, period time.Duration, f func()) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for ctx.Err() == nil {
		f()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (p *part) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(p.told); err != nil {
		os.Exit(1) // nobody listens
	}
}

// call makes and counts a call, which is completed even when the part is to stop.
func (p *part) call(f func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	err := f(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Calls++
	if err != nil {
		p.Failed++
		if p.Error == "" {
			p.Error = err.Error()
		}
	}
}

func (p *part) beat(node string) {
	p.call(func(ctx context.Context) error {
		state, err := p.pools.Read(ctx, node)
		if err != nil {
			return err
		}
		pods := map[string]int64{}
		for slot := range slots {
			pods[podOf("donor", slot)], pods[podOf("borrower", slot)] = 0, 0
		}
		_, err = p.pools.Heartbeat(ctx, node, pool.Heartbeat{Agent: p.name, Epoch: state.Epoch, Whole: true, Lendable: api.Resources{CPUMilli: 1 << 20, MemoryBytes: 1 << 40}, Pods: pods, Rested: slices.Collect(maps.Keys(pods)), RestedAt: state.Now})
		return err
	})
}

func podOf(side string, slot int) string { return fmt.Sprintf("default/%s-%d", side, slot) }

// invoke runs a request with a surplus, and one beside it with a want.
func (p *part) invoke(node string, slot int) {
	var gives, takes pool.Invocation
	for side, inv := range map[string]*pool.Invocation{"donor": &gives, "borrower": &takes} {
		*inv = pool.Invocation{
			ID: fmt.Sprintf("%s-%s-%s-%d-%d", p.name, node, side, slot, time.Now().UnixNano()), Function: "default/resize-00001", Pod: podOf(side, slot),
			Domain: "default", Owner: p.name, Size: 1 << 20, Allocation: allocation, Duration: time.Minute,
		}
	}
	gives.Surplus, takes.Want = spare, spare
	p.call(func(ctx context.Context) error { _, err := p.pools.Begin(ctx, node, gives); return err })
	p.call(func(ctx context.Context) error {
		borrowed, err := p.pools.Begin(ctx, node, takes)
		if !borrowed.IsZero() {
			p.mu.Lock()
			p.Borrowed++
			p.mu.Unlock()
		}
		return err
	})
	p.call(func(ctx context.Context) error {
		_, err := p.pools.End(ctx, node, pool.Ending{ID: takes.ID, Status: 200})
		_, errGives := p.pools.End(ctx, node, pool.Ending{ID: gives.ID, Status: 200})
		return errors.Join(err, errGives)
	})
}
