package main

import (
	"errors"
	"math"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

// busy is a container that uses half a core, and more memory the longer it runs, until
// it ends. It runs in a bubble, whose time it tells.
type busy struct {
	cgroup.Container
	began, ends time.Time
}

func (b busy) Read() (cgroup.Reading, error) {
	ran := time.Since(b.began)
	if !b.ends.IsZero() && !time.Now().Before(b.ends) {
		return cgroup.Reading{}, syscall.ENODEV
	}
	return cgroup.Reading{CPU: ran / 2, Memory: int64(ran / time.Millisecond), Limit: api.Resources{CPUMilli: 600}}, nil
}

func TestSamplerReadsWhileSomethingIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		s := &sampler{
			functions: map[string]cgroup.Container{"uploader": busy{began: now}, "gone": busy{began: now, ends: now.Add(time.Second)}},
			parts:     map[string]cgroup.Container{"agent": busy{began: now.Add(-time.Minute)}, "restarted": busy{began: now, ends: now.Add(time.Second)}},
		}
		failed := errors.New("what was done failed")
		samples, parts, err := s.during(func() error {
			<-time.After(10 * time.Second)
			return failed
		})
		if !errors.Is(err, failed) {
			t.Errorf("error %v, want that of what was done", err)
		}
		if want := int(10*time.Second/sampleEvery) + 1; len(samples) < want-1 || len(samples) > want+1 {
			t.Errorf("%d samples, want %d", len(samples), want)
		}
		for _, sample := range samples {
			at := sample.At.Sub(now)
			if got, want := sample.Functions["uploader"], (evaluation.Usage{CPU: at / 2, Memory: int64(at / time.Millisecond), Limit: api.Resources{CPUMilli: 600}}); got != want {
				t.Errorf("after %v: %+v, want %+v", at, got, want)
			}
			if _, there := sample.Functions["gone"]; there != (at < time.Second) {
				t.Errorf("after %v the container that ends after a second is there: %t", at, there)
			}
		}
		if agent := parts["agent"]; math.Abs(agent.Cores-0.5) > 1e-9 || agent.Memory != 70_000 {
			t.Errorf("the agent used %+v, want half a core and 70000 bytes", agent)
		}
		if _, there := parts["restarted"]; there {
			t.Error("a part that has ended has a mean")
		}
	})
}
