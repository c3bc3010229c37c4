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

// metered is a container whose use of CPU can be read.
type metered struct {
	cgroup.Container
	last time.Duration
}

// used returns how much CPU the container has used so far, or at the last reading if it has ended since.
func (c *metered) used() time.Duration {
	if cpu, err := c.CPU(); err == nil {
		c.last = cpu
	}
	return c.last
}

// containers are containers by what they belong to.
type containers map[string][]*metered

// meter reads how much CPU containers have used, from their cgroups on this machine. For
// another cluster it is nil, and reads zeros.
type meter struct {
	// functions are the user containers of a place by service, sidecars its pods' other
	// containers by service, and libra those of Libra's parts by container.
	functions, sidecars, libra containers
}

// openMeter opens the running containers of the functions at a place, and of Libra's parts.
func (d *demo) openMeter(ctx context.Context) (*meter, error) {
	if !d.boxed() {
		return nil, nil
	}
	m := &meter{containers{}, containers{}, containers{}}
	err := d.open(ctx, []string{"-n", d.namespace, "-l", serving.ServiceLabelKey}, func(p pod, container string) (containers, string) {
		if container == api.QueueProxyContainer {
			return m.sidecars, p.Labels[serving.ServiceLabelKey]
		}
		return m.functions, p.Labels[serving.ServiceLabelKey]
	})
	libra := func(_ pod, container string) (containers, string) { return m.libra, container }
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
type placing func(p pod, container string) (containers, string)

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
			into[as] = append(into[as], &metered{Container: c})
		}
	}
	return nil
}

func (m *meter) close() {
	if m == nil {
		return
	}
	for _, kind := range []containers{m.functions, m.sidecars, m.libra} {
		for _, all := range kind {
			closeAll(all)
		}
	}
}

// counters are a meter's readings so far.
type counters struct {
	node                     nodeCPU
	functions, libra, agents time.Duration
}

// read reads all counters. What a container that has ended used since the last reading is
// lost, and so is the use of one that has begun since the meter was opened.
func (m *meter) read() (c counters, err error) {
	if m == nil {
		return c, nil
	}
	for _, all := range m.functions {
		c.functions += used(all)
	}
	for _, all := range m.sidecars {
		c.functions += used(all)
	}
	for container, all := range m.libra {
		cpu := used(all)
		if c.libra += cpu; container == agentContainer {
			c.agents += cpu
		}
	}
	c.node, err = readNodeCPU()
	return c, err
}

func used(all []*metered) time.Duration {
	var sum time.Duration
	for _, c := range all {
		sum += c.used()
	}
	return sum
}

// since returns the use since an earlier reading. The kernel's counters of the node can go
// back a little, which counts as 0.
func (c counters) since(before counters) evaluation.Usage {
	u := evaluation.Usage{
		Node:      max(0, c.node.busy-before.node.busy).Seconds(),
		Stolen:    max(0, c.node.stolen-before.node.stolen).Seconds(),
		Functions: (c.functions - before.functions).Seconds(),
		Libra:     (c.libra - before.libra).Seconds(),
		Agents:    (c.agents - before.agents).Seconds(),
	}
	u.Platform = max(0, u.Node-u.Functions-u.Libra)
	return u
}
