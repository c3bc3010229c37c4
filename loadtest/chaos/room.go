package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/ceiling"
)

// room is what bounds ceilings: of none under owners.
type room struct {
	source      api.Source
	allocatable int64 // milli CPU
}

// ceilingOf is the ceiling of a pod under source node.
func (r room) ceilingOf(p *corev1.Pod, owed api.Resources) (int64, error) {
	if r.source != api.SourceNode {
		return 0, nil
	}
	return ceiling.Of(p, owed.CPUMilli, r.allocatable, settings.Settings{})
}

// room reads what bounds ceilings under a source.
func (c *cluster) room(ctx context.Context, source api.Source) (room, error) {
	r := room{source: source}
	node, err := c.Kube.CoreV1().Nodes().Get(ctx, c.Home, metav1.GetOptions{})
	if err != nil {
		return r, err
	}
	r.allocatable = node.Status.Allocatable.Cpu().MilliValue()
	return r, nil
}
