package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/kubectl/swap"
)

const (
	fieldManager = swap.FieldManager

	libraActivatorImage = "libra-activator"
	activatorSelector   = "app=activator"

	swapTimeout = 3 * time.Minute
)

var activator = []string{"-n", servingNamespace, "deployment/activator"}

// swap returns the Swap that changes the cluster's activator.
func (d *demo) swap() (swap.Swap, error) {
	if d.kube == nil {
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = d.kubeconfig
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: d.context}).ClientConfig()
		if err != nil {
			return swap.Swap{}, err
		}
		if d.boxed() { // no proxy leads to the box
			config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
		}
		if d.kube, err = client.New(config, client.Options{}); err != nil {
			return swap.Swap{}, err
		}
	}
	return swap.Swap{Client: d.kube, Out: d.out, Timeout: swapTimeout}, nil
}

// installActivator replaces the stock activator with Libra's.
func (d *demo) installActivator(ctx context.Context) error {
	if err := d.kubectl.apply(ctx, activatorManifests); err != nil {
		return err
	}
	if d.redisAuth {
		return d.setActivator(ctx, tellOfRedis)
	}
	return d.setActivator(ctx, nil)
}

// setActivator installs Libra's activator, with what extend adds to its pods;
// nil adds nothing.
func (d *demo) setActivator(ctx context.Context, extend func(*applycorev1.PodSpecApplyConfiguration)) error {
	s, err := d.swap()
	if err != nil {
		return err
	}
	if err := s.Install(ctx, d.images[libraActivatorImage], extend); err != nil {
		return err
	}
	return d.activatorReplaced(ctx)
}

// restoreActivator puts the stock activator back, unless it is already there.
func (d *demo) restoreActivator(ctx context.Context) error {
	s, err := d.swap()
	if err != nil {
		return err
	}
	if err := s.Remove(ctx); err != nil {
		return err
	}
	return d.activatorReplaced(ctx)
}

func variable(name, value string) *applycorev1.EnvVarApplyConfiguration {
	return applycorev1.EnvVar().WithName(name).WithValue(value)
}

// activatorReplaced waits until the activator's new pods serve and, on the box, are the only ones. On another
// cluster the previous ones may have others' requests to drain, for minutes.
func (d *demo) activatorReplaced(ctx context.Context) error {
	if err := d.kubectl.wait(ctx, swapTimeout, slices.Concat([]string{"rollout", "status"}, activator)...); err != nil {
		return err
	}
	if !d.boxed() {
		return nil
	}
	return eventually(ctx, swapTimeout, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := d.kubectl.get(ctx, &pods, "-n", servingNamespace, "pods", "-l", activatorSelector); err != nil {
			return err
		}
		var left error
		for _, p := range pods.Items {
			if p.DeletionTimestamp == nil {
				continue
			}
			left = errors.Join(left, fmt.Errorf("pod %s of the previous activator is still terminating", p.Name))
			// It would stay for 45 s, to drain requests. A shorter grace period alone does not hurry a
			// kubelet that has begun.
			if _, err := d.kubectl.run(ctx, "-n", servingNamespace, "delete", "pod", p.Name, "--grace-period=0", "--force"); err != nil {
				left = errors.Join(left, err)
			}
		}
		return left
	})
}
