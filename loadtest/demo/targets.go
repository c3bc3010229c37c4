package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// targets is where requests go.
type targets struct {
	gateway string            // URL of the ingress
	hosts   map[string]string // Host header of each function
	// revisions names the functions' revisions, namespace/name.
	revisions map[string]string
}

func (d *demo) findTargets(ctx context.Context) (targets, error) {
	t := targets{gateway: d.gatewayURL, hosts: map[string]string{}, revisions: map[string]string{}}
	if t.gateway == "" {
		namespace, name, ok := strings.Cut(d.gateway, "/")
		if !ok {
			return t, fmt.Errorf("--gateway is %q; it must be <namespace>/<name> of the ingress' Service", d.gateway)
		}
		var service corev1.Service
		if err := d.kubectl.get(ctx, &service, "-n", namespace, "service", name); err != nil {
			return t, err
		}
		address := service.Spec.ClusterIP
		if ingress := service.Status.LoadBalancer.Ingress; len(ingress) > 0 {
			address = ingress[0].IP + ingress[0].Hostname
		}
		t.gateway = "http://" + address
	}
	var list servingv1.ServiceList
	if err := d.kubectl.get(ctx, &list, "-n", d.namespace, "services.serving.knative.dev"); err != nil {
		return t, err
	}
	for _, service := range list.Items {
		if service.Status.URL != nil {
			t.hosts[service.Name] = service.Status.URL.Host
			t.revisions[service.Name] = d.namespace + "/" + service.Status.LatestReadyRevisionName
		}
	}
	for _, f := range d.services.all {
		if t.hosts[f] == "" {
			return t, fmt.Errorf("service %s/%s has no URL yet", d.namespace, f)
		}
	}
	return t, nil
}
