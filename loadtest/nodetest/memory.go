package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	// beyondEach is how many requests each function gets that need more memory than its limit: 200
	// in all. They go one at a time, because they compute, and an emulated API server without CPU
	// needs seconds for a patch.
	beyondEach = 50
	beyondLast = time.Second
)

// memoryBeyond has a function that did not opt in need half as much again as its memory limit, which
// kills it. Then those that opted in need the same without a prediction: none of them may be killed.
func memoryBeyond(ctx context.Context, g *guest) (o outcome, err error) {
	if err := g.killStock(ctx); err != nil {
		return o, err
	}
	before := maps.Clone(g.running)
	kills, err := oomKills()
	if err != nil {
		return o, err
	}
	l := &load{pools: g.pools}
	renewing, cancel := context.WithCancel(ctx)
	l.cancel = cancel
	l.renew(renewing)
	l.done.Go(func() { g.tellOfMemory(renewing) })
	for _, f := range functions {
		for i := range beyondEach {
			l.note(f, l.beyond(ctx, f, i, g.running[f.key()].ip))
		}
	}
	err = l.stop(ctx)
	if o.Answered, o.Unanswered = l.answered, len(l.failed); o.Unanswered > 0 {
		err = errors.Join(err, fmt.Errorf("failed requests: %d, the first: %w", o.Unanswered, l.failed[0]))
	}
	err = errors.Join(err, g.judge(ctx, &o, wholeWithin), g.eventually(ctx, "all pods' own memory limits", memoryLimit, g.memoryBack))
	after, killsErr := oomKills()
	o.OOMKills = after - kills
	g.countRestarts(nodeCase{}, before, &o)
	return o, errors.Join(err, killsErr, unharmed(o))
}

// tellOfMemory prints how memory limits change, until the context ends.
func (g *guest) tellOfMemory(ctx context.Context) {
	last := map[function]int64{}
	for backOff(ctx, 50*time.Millisecond) {
		for _, f := range functions {
			scope := g.running[f.key()].scope
			limits, err := scope.limits()
			used, usedErr := scope.memory()
			if err != nil || usedErr != nil || limits.MemoryBytes == last[f] {
				continue
			}
			g.say("%s has a memory limit of %d MiB and uses %d", f.name, limits.MemoryBytes/mebibyte, used/mebibyte)
			last[f] = limits.MemoryBytes
		}
	}
}

// beyond sends a function a request that needs more than its limit, and begins it in the pool as an
// activator would that does not know.
func (l *load) beyond(ctx context.Context, f function, i int, ip string) error {
	inv := pool.Invocation{
		ID: fmt.Sprintf("beyond-%s-%d", f.name, i), Function: f.key(), Pod: f.key(), Domain: f.namespace, Owner: owner,
		Size: api.UnknownSize, Allocation: f.owed, Ranked: f.namespace == first.namespace,
	}
	if _, err := l.pools.Begin(ctx, nodeName, inv); err != nil {
		return fmt.Errorf("begin %s: %w", inv.ID, err)
	}
	err := call(ctx, ip, needsMiB, beyondLast)
	_, endErr := l.pools.End(ctx, nodeName, pool.Ending{ID: inv.ID, BeginAnswered: true})
	return errors.Join(err, endErr)
}

// killStock has a function that did not opt in need as much. It returns an error unless that kills
// it.
func (g *guest) killStock(ctx context.Context) error {
	stock := function{namespace: first.namespace, name: "stock", owed: first.owed}
	grace := int64(0)
	pods := g.kube.CoreV1().Pods(stock.namespace)
	if _, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: stock.namespace, Name: stock.name},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{stock.container(g.images[holdImage])}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer pods.Delete(context.WithoutCancel(ctx), stock.name, metav1.DeleteOptions{GracePeriodSeconds: &grace}) //nolint:errcheck // it is in nobody's way
	var ip string
	if err := g.eventually(ctx, "the stock function", upLimit, func(ctx context.Context) error {
		pod, err := pods.Get(ctx, stock.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ip = pod.Status.PodIP; ip == "" || pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("its pod is in phase %s", pod.Status.Phase)
		}
		return call(ctx, ip, 1, 10*time.Millisecond)
	}); err != nil {
		return err
	}
	if err := call(ctx, ip, needsMiB, beyondLast); err == nil {
		return fmt.Errorf("the stock function used %d MiB with a limit of %d, and still answered", needsMiB, stock.owed.MemoryBytes/mebibyte)
	}
	return g.eventually(ctx, "the OOM kill of the stock function", time.Minute, func(ctx context.Context) error {
		pod, err := pods.Get(ctx, stock.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := userStatus(pod); s == nil || !slices.ContainsFunc([]*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated},
			func(t *corev1.ContainerStateTerminated) bool { return t != nil && t.Reason == "OOMKilled" }) {
			return fmt.Errorf("its container is %+v", s)
		}
		return nil
	})
}
