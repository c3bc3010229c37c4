package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/pkg/settings"
)

// deployments has the parts that go away when they are scaled down, with as many pods as the
// manifests give them. agentSet goes away when its pods may run nowhere.
var deployments = map[part]deployment{redisPart: {"redis", 1}, controller: {"libra-resizer", 2}}

type deployment struct {
	name     string
	replicas int
}

const (
	agentSet = "libra-agent"
	// nowhereKey is a label that no node has.
	nowhereKey = "chaos.libra.dev/nowhere"
)

// beGone takes a part away for a while, and brings it back.
func (c *cluster) beGone(ctx context.Context, t target, l *load) (struck, error) {
	s, err := c.away(ctx, t, l)
	t.back()
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := errors.Join(err, c.bringBack(undo, t.part)); err != nil {
		return s, err
	}
	_, err = c.readyOf(ctx, t.at, t.running.id)
	return s, err
}

// away takes the part away, and returns after t.length.
func (c *cluster) away(ctx context.Context, t target, l *load) (s struck, err error) {
	switch t.part {
	case agent:
		// The controller and the kubelet keep running, and can repair from now on.
		s.due = time.Now()
		err = c.vanish(ctx, t)
	case controller:
		if err = c.scale(ctx, t.part, 0); err == nil {
			// A new pod becomes ready, and nothing sets its ceiling.
			s, err = c.removePod(ctx, *t.meanwhile, l)
		}
	default:
		err = c.scale(ctx, t.part, 0)
	}
	if err != nil {
		return s, err
	}
	return s, rig.Pause(ctx, t.length)
}

// vanish ends the agent without letting it give anything back, and keeps it from being
// started again.
func (c *cluster) vanish(ctx context.Context, t target) (err error) {
	defer func() {
		if err != nil {
			for _, p := range t.processes {
				err = errors.Join(err, resume(p))
			}
		}
	}()
	for _, p := range t.processes {
		// A stopped agent does nothing more, and notices nothing until the kubelet kills it.
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			return fmt.Errorf("stop process %d of %s: %w", p.Pid, t.part, err)
		}
	}
	if err := c.placeAgents(ctx, map[string]any{nowhereKey: ""}); err != nil {
		return err
	}
	return c.Kube.CoreV1().Pods(t.at.namespace).Delete(ctx, t.running.pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
}

// bringBack has a part run again. It does no harm if the part was not gone.
func (c *cluster) bringBack(ctx context.Context, p part) error {
	if p == agent {
		return c.placeAgents(ctx, map[string]any{nowhereKey: nil})
	}
	return c.scale(ctx, p, deployments[p].replicas)
}

// bringAllBack brings back whatever an interrupted run left away.
func (c *cluster) bringAllBack(ctx context.Context) error {
	errs := []error{c.bringBack(ctx, agent)}
	for p := range deployments {
		errs = append(errs, c.bringBack(ctx, p))
	}
	return errors.Join(errs...)
}

func (c *cluster) scale(ctx context.Context, p part, replicas int) error {
	change := map[string]any{"spec": map[string]any{"replicas": replicas}}
	_, err := c.Kube.AppsV1().Deployments(rig.LibraNamespace).Patch(ctx, deployments[p].name, types.MergePatchType, patch(change), metav1.PatchOptions{})
	return err
}

// placeAgents sets labels that a node must have to get an agent; nil drops a label.
func (c *cluster) placeAgents(ctx context.Context, labels map[string]any) error {
	change := map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"nodeSelector": labels}}}}
	_, err := c.Kube.AppsV1().DaemonSets(settings.AgentNamespace).Patch(ctx, agentSet, types.MergePatchType, patch(change), metav1.PatchOptions{})
	return err
}
