package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
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
	procStat   = "/proc/stat"
	// ticksPerSecond is the unit of procStat, whatever the rate of the kernel's own clock.
	ticksPerSecond = 100

	agentContainer = "agent"
)

// nodeCPU is how long the machine's CPUs have been busy so far, for anybody, and how long
// they had work and did not do it because the hypervisor gave them to others.
type nodeCPU struct{ busy, stolen time.Duration }

func readNodeCPU() (nodeCPU, error) {
	text, err := os.ReadFile(procStat)
	if err != nil {
		return nodeCPU{}, err
	}
	return parseNodeCPU(string(text))
}

// parseNodeCPU reads the first line of procStat.
func parseNodeCPU(stat string) (nodeCPU, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	// user, nice, system, idle, iowait, irq, softirq, steal; guest times follow, which
	// user includes.
	if len(fields) < 9 || fields[0] != "cpu" {
		return nodeCPU{}, fmt.Errorf("%s begins with %.80q; it must begin with the times of all CPUs, eight or more", procStat, line)
	}
	var ticks [8]float64
	for i, field := range fields[1:9] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return nodeCPU{}, fmt.Errorf("%s: %w", procStat, err)
		}
		ticks[i] = n
	}
	passed := func(ticks float64) time.Duration {
		return time.Duration(ticks / ticksPerSecond * float64(time.Second))
	}
	return nodeCPU{
		busy:   passed(ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]),
		stolen: passed(ticks[7]),
	}, nil
}

// meter reads how much CPU containers have used, from their cgroups on this machine. For
// another cluster it is nil, and reads zeros.
type meter struct {
	// functions are the user containers of a place by service, sidecars its pods' other
	// containers by service, and libra those of Libra's parts by container.
	functions, sidecars, libra map[string][]cgroup.Container
}

// openMeter opens the running containers of the functions at a place, and of Libra's parts.
func (d *demo) openMeter(ctx context.Context) (*meter, error) {
	if !d.boxed() {
		return nil, nil
	}
	m := &meter{map[string][]cgroup.Container{}, map[string][]cgroup.Container{}, map[string][]cgroup.Container{}}
	err := d.open(ctx, []string{"-n", d.namespace, "-l", serving.ServiceLabelKey}, func(p pod, container string) (map[string][]cgroup.Container, string) {
		if container == api.QueueProxyContainer {
			return m.sidecars, p.Labels[serving.ServiceLabelKey]
		}
		return m.functions, p.Labels[serving.ServiceLabelKey]
	})
	libra := func(_ pod, container string) (map[string][]cgroup.Container, string) { return m.libra, container }
	for _, namespace := range []string{libraNamespace, agentNamespace} {
		if err == nil {
			err = d.open(ctx, []string{"-n", namespace}, libra)
		}
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// placing returns the map and the key under which a pod's container belongs.
type placing func(p pod, container string) (map[string][]cgroup.Container, string)

// open opens the running containers of pods, and puts each where it belongs.
func (d *demo) open(ctx context.Context, pods []string, where placing) error {
	var list corev1.PodList
	if err := d.kubectl.get(ctx, &list, append([]string{"pods"}, pods...)...); err != nil {
		return err
	}
	for _, p := range list.Items {
		for _, status := range p.Status.ContainerStatuses {
			if p.DeletionTimestamp != nil || status.State.Running == nil {
				continue
			}
			_, id, _ := strings.Cut(status.ContainerID, "://")
			c, err := cgroup.Open(cgroupRoot, id)
			if errors.Is(err, cgroup.ErrNotFound) {
				continue // it has ended since
			}
			if err != nil {
				return fmt.Errorf("container %s of pod %s: %w", status.Name, p.Name, err)
			}
			into, as := where(p, status.Name)
			into[as] = append(into[as], c)
		}
	}
	return nil
}

func (m *meter) close() {
	if m == nil {
		return
	}
	for _, kind := range []map[string][]cgroup.Container{m.functions, m.sidecars, m.libra} {
		for _, containers := range kind {
			for _, c := range containers {
				c.Close() //nolint:errcheck // only read
			}
		}
	}
}

// counters are a meter's readings so far.
type counters struct {
	node                     nodeCPU
	functions, libra, agents time.Duration
}

// read reads all counters. A container that has ended no longer counts, so its use since
// the last reading is lost.
func (m *meter) read() (c counters, err error) {
	if m == nil {
		return c, nil
	}
	for _, containers := range m.functions {
		c.functions += used(containers)
	}
	for _, containers := range m.sidecars {
		c.functions += used(containers)
	}
	for container, containers := range m.libra {
		cpu := used(containers)
		if c.libra += cpu; container == agentContainer {
			c.agents += cpu
		}
	}
	c.node, err = readNodeCPU()
	return c, err
}

func used(containers []cgroup.Container) time.Duration {
	var sum time.Duration
	for _, c := range containers {
		if r, err := c.Read(); err == nil {
			sum += r.CPU
		}
	}
	return sum
}

// since returns the use since an earlier reading. A counter that went down has started
// anew: it counts as 0.
func (c counters) since(before counters) evaluation.Usage {
	u := evaluation.Usage{
		Node:      max(0, c.node.busy-before.node.busy).Seconds(),
		Stolen:    max(0, c.node.stolen-before.node.stolen).Seconds(),
		Functions: max(0, c.functions-before.functions).Seconds(),
		Libra:     max(0, c.libra-before.libra).Seconds(),
		Agents:    max(0, c.agents-before.agents).Seconds(),
	}
	u.Platform = max(0, u.Node-u.Functions-u.Libra)
	return u
}
