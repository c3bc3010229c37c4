package kubectl

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// forward makes a pod's port reachable at a local address until close is called.
type forward func(ctx context.Context, pod *corev1.Pod, port int32) (base *url.URL, close func(), err error)

func (o *options) forward(ctx context.Context, pod *corev1.Pod, port int32) (*url.URL, func(), error) {
	dialer, err := o.dialer(pod)
	if err != nil {
		return nil, nil, err
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf(":%d", port)}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return nil, nil, fmt.Errorf("forwarding a port to pod %s/%s, which needs the right to create pods/portforward in namespace %s: %w", pod.Namespace, pod.Name, pod.Namespace, err)
	case <-ctx.Done():
		close(stop)
		return nil, nil, fmt.Errorf("forwarding a port to pod %s/%s: %w", pod.Namespace, pod.Name, ctx.Err())
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		close(stop)
		return nil, nil, err
	}
	return &url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports[0].Local)}, func() { close(stop) }, nil
}

// named forwards a port by the name that the pod gives it.
func (to forward) named(ctx context.Context, pod *corev1.Pod, name string) (*url.URL, func(), error) {
	port, err := portOf(pod, name)
	if err != nil {
		return nil, nil, err
	}
	return to(ctx, pod, port)
}

// dialer returns a dialer that uses WebSocket, or SPDY if the API
// server does not support WebSocket.
func (o *options) dialer(pod *corev1.Pod) (httpstream.Dialer, error) {
	config, err := o.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("loading the client configuration: %w", err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	target := clients.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	overSPDY := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(target, config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialer(overWebSocket, overSPDY, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

func portOf(pod *corev1.Pod, name string) (int32, error) {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == name {
				return p.ContainerPort, nil
			}
		}
	}
	return 0, fmt.Errorf("pod %s/%s has no port named %s: its version may differ from this plugin's", pod.Namespace, pod.Name, name)
}

var scraper = &http.Client{Timeout: 5 * time.Second}

func get(ctx context.Context, at *url.URL) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := scraper.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("%s answered %s, want 200", at.Path, response.Status)
	}
	return response, nil
}
