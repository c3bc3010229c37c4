package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	servingclient "knative.dev/serving/pkg/client/clientset/versioned"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/rig"
)

const redisTimeout = 10 * time.Second

// site has everything that one run of the command starts.
type site struct {
	options
	out   io.Writer
	start time.Time
	dir   string // temporary
	logs  string

	config     *rest.Config // the administrator's
	kubeconfig string
	kube       kubernetes.Interface
	knative    servingclient.Interface
	audit      *audit
	redis      string // host:port

	closers []func() error
}

func newSite(o options, out io.Writer) (*site, error) {
	s := &site{options: o, out: out, start: time.Now(), logs: filepath.Join(o.out, "logs")}
	if err := os.MkdirAll(s.logs, 0o755); err != nil {
		return nil, err
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "bench-resizer"); err != nil {
		return nil, err
	}
	s.onClose(func() error { return os.RemoveAll(s.dir) })
	return s, nil
}

func (s *site) onClose(f func() error) { s.closers = append(s.closers, f) }

// close undoes everything, in reverse order.
func (s *site) close() error { return s.closeTo(0) }

// closeTo undoes everything except the first so many things, in reverse order.
func (s *site) closeTo(first int) error {
	var errs []error
	for len(s.closers) > first {
		last := len(s.closers) - 1
		f := s.closers[last]
		s.closers = s.closers[:last]
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// say writes a line of progress.
func (s *site) say(format string, args ...any) {
	fmt.Fprintf(s.out, "[%4.0f s] %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// startRedis starts the Redis of the pools.
func (s *site) startRedis(ctx context.Context) error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return fmt.Errorf("redis-server 7 or later is not on the PATH: `make deps` installs it: %w", err)
	}
	if s.redis, err = machine.FreeAddress(); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(s.redis)
	if err != nil {
		return err
	}
	p, err := s.launch("redis", path, nil, "--bind", host, "--port", port, "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction")
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: s.redis})
	defer client.Close() //nolint:errcheck // it was only asked
	err = rig.Eventually(ctx, redisTimeout, func(ctx context.Context) error { return client.Ping(ctx).Err() })
	if err != nil {
		return errors.Join(fmt.Errorf("redis-server does not answer: %w", err), p.ended())
	}
	return nil
}
