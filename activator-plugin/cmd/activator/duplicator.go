package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/kelseyhightower/envconfig"
	"k8s.io/apimachinery/pkg/api/resource"
	"knative.dev/serving/pkg/networking"

	"libra.dev/libra/activator-plugin/duplicator"
	"libra.dev/libra/pkg/api"
)

// duplicatorConfig configures the duplicator, which is off unless the cluster's
// administrator turns it on.
type duplicatorConfig struct {
	// Whether inputs of functions that ask for it are duplicated.
	Duplicator string `default:"false"`
	// The CPU limit of copies, where the revision's is not larger.
	DuplicatorCPU string `split_words:"true" default:"2"`
	// The memory limit of copies, where the revision's is not larger.
	DuplicatorMemory string `split_words:"true" default:"1Gi"`

	on      bool
	largest api.Resources
}

func (c *duplicatorConfig) fromEnv() error {
	if err := envconfig.Process("libra", c); err != nil {
		return err
	}
	var errs [3]error
	var cpu, memory resource.Quantity
	if c.on, errs[0] = strconv.ParseBool(c.Duplicator); errs[0] != nil {
		errs[0] = fmt.Errorf("LIBRA_DUPLICATOR is %q, want true or false", c.Duplicator)
	}
	if cpu, errs[1] = resource.ParseQuantity(c.DuplicatorCPU); errs[1] != nil || cpu.MilliValue() <= 0 {
		errs[1] = fmt.Errorf("LIBRA_DUPLICATOR_CPU is %q, want an amount of CPU such as 2 or 1500m", c.DuplicatorCPU)
	}
	if memory, errs[2] = resource.ParseQuantity(c.DuplicatorMemory); errs[2] != nil || memory.Value() < 1<<20 {
		errs[2] = fmt.Errorf("LIBRA_DUPLICATOR_MEMORY is %q, want an amount of memory such as 1Gi", c.DuplicatorMemory)
	}
	c.largest = api.Resources{CPUMilli: cpu.MilliValue(), MemoryBytes: memory.Value()}
	return errors.Join(errs[:]...)
}

// duplication is a Duplicator and its goroutine. It is nil when duplication is off.
type duplication struct {
	*duplicator.Duplicator
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newDuplication(o duplicator.Options) (*duplication, error) {
	o.Activator = &url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(networking.BackendHTTPPort))}
	d, err := duplicator.New(o)
	if err != nil {
		return nil, err
	}
	return &duplication{Duplicator: d, cancel: func() {}}, nil
}

func (d *duplication) handler(next http.Handler) http.Handler {
	if d == nil {
		return next
	}
	return d.Handler(next)
}

// start duplicates in the background until ctx is done, which is when the activator is
// told to stop: the drain leaves time to remove a copy.
func (d *duplication) start(ctx context.Context) {
	if d == nil {
		return
	}
	ctx, d.cancel = context.WithCancel(ctx)
	d.running.Go(func() { d.Run(ctx) })
}

// stop ends duplication and returns when no copy is left.
func (d *duplication) stop() error {
	if d == nil {
		return nil
	}
	d.cancel()
	d.running.Wait()
	return d.Close()
}
