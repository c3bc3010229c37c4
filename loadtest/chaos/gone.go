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

// deployments are the parts that are gone when they are scaled down, with as many pods as the
// manifests give them, and agentSet the one that is when its pods may run nowhere.
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

// beGone takes a part away for a while.
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

// away returns when the part has been gone for as long as it is to be.
func (c *cluster) away(ctx context.Context, t target, l *load) (s struck, err error) {
	switch t.part {
	case agent:
		// The controller and the kubelet are there all the time.
		s.due = time.Now()
		err = c.vanish(ctx, t)
	case controller:
		if err = c.scale(ctx, t.part, 0); err == nil {
			// A new pod comes to be ready, and nobody sets its ceiling.
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

// vanish ends the agent where it does not give anything back, and has nobody start it again.
func (c *cluster) vanish(ctx context.Context, t target) (err error) {
	defer func() {
		if err != nil {
			for _, p := range t.processes {
				err = errors.Join(err, resume(p))
			}
		}
	}()
	for _, p := range t.processes {
		// Stopped, it does no more, and hears of nothing until the kubelet kills it.
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			return fmt.Errorf("stop process %d of %s: %w", p.Pid, t.part, err)
		}
	}
	if err := c.placeAgents(ctx, map[string]any{nowhereKey: ""}); err != nil {
		return err
	}
	return c.Kube.CoreV1().Pods(t.at.namespace).Delete(ctx, t.running.pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
}

// bringBack has a part run again that was gone, also when it was not.
func (c *cluster) bringBack(ctx context.Context, p part) error {
	if p == agent {
		return c.placeAgents(ctx, map[string]any{nowhereKey: nil})
	}
	return c.scale(ctx, p, deployments[p].replicas)
}

// bringAllBack is for what an interrupted run left.
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

// placeAgents says what labels a node must have for an agent; nil is for one that it need
// not have any more.
func (c *cluster) placeAgents(ctx context.Context, labels map[string]any) error {
	change := map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"nodeSelector": labels}}}}
	_, err := c.Kube.AppsV1().DaemonSets(settings.AgentNamespace).Patch(ctx, agentSet, types.MergePatchType, patch(change), metav1.PatchOptions{})
	return err
}
