package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

const (
	// cgroupRoot is where this machine, which is the box's node, has its cgroups.
	cgroupRoot = "/sys/fs/cgroup"

	// sampleEvery is often enough for utilisation over time, and takes a thousandth of a
	// core.
	sampleEvery = 200 * time.Millisecond
)

// sampler reads the cgroups of the functions, and of Libra's parts, on this machine.
type sampler struct {
	functions, parts map[string]cgroup.Container
}

// openSampler finds the containers that run now. It has none of another cluster than the
// box, whose cgroups are not on this machine.
func (d *demo) openSampler(ctx context.Context) (*sampler, error) {
	s := &sampler{map[string]cgroup.Container{}, map[string]cgroup.Container{}}
	if !d.boxed() {
		return s, nil
	}
	err := errors.Join(
		d.openContainers(ctx, s.functions, []string{"-n", d.namespace, "-l", d.services.selector()}, func(p corev1.Pod, container string) string {
			if container != api.UserContainer {
				return ""
			}
			return p.Labels[serving.ServiceLabelKey]
		}),
		d.openContainers(ctx, s.parts, []string{"-n", libraNamespace}, func(p corev1.Pod, container string) string {
			if container == "kserve-container" {
				return "predictor"
			}
			return container
		}),
		d.openContainers(ctx, s.parts, []string{"-n", servingNamespace, "-l", activatorSelector}, func(_ corev1.Pod, container string) string {
			return container
		}))
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// openContainers opens the containers that have a name.
func (d *demo) openContainers(ctx context.Context, into map[string]cgroup.Container, selection []string, name func(p corev1.Pod, container string) string) error {
	var pods corev1.PodList
	if err := d.kubectl.get(ctx, &pods, append([]string{"pods"}, selection...)...); err != nil {
		return err
	}
	for _, p := range pods.Items {
		for _, status := range p.Status.ContainerStatuses {
			as := name(p, status.Name)
			if as == "" || p.DeletionTimestamp != nil || status.State.Running == nil {
				continue
			}
			if before := into[as]; before != nil {
				return fmt.Errorf("two containers are %s, one of them in pod %s: what is measured of them would be of one only", as, p.Name)
			}
			_, id, _ := strings.Cut(status.ContainerID, "://")
			c, err := cgroup.Open(cgroupRoot, id)
			if err != nil {
				return fmt.Errorf("container %s of pod %s: %w", status.Name, p.Name, err)
			}
			into[as] = c
		}
	}
	return nil
}

func (s *sampler) close() {
	for _, containers := range []map[string]cgroup.Container{s.functions, s.parts} {
		for c := range maps.Values(containers) {
			c.Close() //nolint:errcheck // only read
		}
	}
}

// during samples while something is done, and says what the functions and the parts
// used. A container that has ended is left out from then on.
func (s *sampler) during(do func() error) ([]evaluation.Sample, map[string]evaluation.Part, error) {
	var samples []evaluation.Sample
	before, began := s.readParts(), time.Now()
	most := map[string]int64{}
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for n := 0; ; n++ {
			samples = append(samples, s.sample(time.Now()))
			if n%5 == 0 {
				for name, r := range s.readParts() {
					most[name] = max(most[name], r.Memory)
				}
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
	err := do()
	close(stop)
	group.Wait()
	passed := time.Since(began)
	parts := map[string]evaluation.Part{}
	for name, r := range s.readParts() {
		if b, ok := before[name]; ok {
			parts[name] = evaluation.Part{Cores: (r.CPU - b.CPU).Seconds() / passed.Seconds(), Memory: max(most[name], r.Memory)}
		}
	}
	return samples, parts, err
}

func (s *sampler) sample(at time.Time) evaluation.Sample {
	sample := evaluation.Sample{At: at, Functions: map[string]evaluation.Usage{}}
	for name, c := range s.functions {
		if r, err := c.Read(); err == nil {
			sample.Functions[name] = evaluation.Usage{CPU: r.CPU, Memory: r.Memory, Limit: r.Limit}
		}
	}
	return sample
}

func (s *sampler) readParts() map[string]cgroup.Reading {
	readings := map[string]cgroup.Reading{}
	for name, c := range s.parts {
		if r, err := c.Read(); err == nil {
			readings[name] = r
		}
	}
	return readings
}
