package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"libra.dev/libra/loadtest/box/layout"
)

// api asks the API server as the administrator. client-go would make the
// command ten times as large for the few things that it wants to know.
type api struct{ client *http.Client }

func newAPI(l layout.Layout) (api, error) {
	ca, err := os.ReadFile(pki(l, "ca.crt"))
	if err != nil {
		return api{}, err
	}
	// Nothing else is trusted: while our API server does not listen yet,
	// something elsewhere might answer on its address.
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return api{}, fmt.Errorf("%s holds no certificate", pki(l, "ca.crt"))
	}
	cert, err := tls.LoadX509KeyPair(pki(l, "admin.crt"), pki(l, "admin.key"))
	if err != nil {
		return api{}, err
	}
	return api{&http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}},
			ForceAttemptHTTP2: true,
		},
	}}, nil
}

// get reads a path of the API, as JSON into v unless v is nil.
func (a api) get(ctx context.Context, path string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, apiServerURL+path, nil)
	if err != nil {
		return err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %.200s", path, resp.Status, body)
	}
	if v == nil {
		return nil
	}
	return json.Unmarshal(body, v)
}

func (a api) waitReady(ctx context.Context) error {
	return poll(ctx, 50*time.Millisecond, func() (bool, string, error) {
		err := a.get(ctx, "/readyz", nil)
		return err == nil, fmt.Sprintf("the API server is not ready (%v)", err), nil
	})
}

type condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Reason string `json:"reason"`
}

type nodeObject struct {
	Status struct {
		Conditions  []condition       `json:"conditions"`
		Allocatable map[string]string `json:"allocatable"`
	} `json:"status"`
}

// nodeReady says whether the node is Ready, and if not why.
func (a api) nodeReady(ctx context.Context) (ready bool, reason string, err error) {
	var n nodeObject
	if err := a.get(ctx, "/api/v1/nodes/"+NodeName, &n); err != nil {
		return false, "", err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True", c.Reason, nil
		}
	}
	return false, "not reported yet", nil
}

type objectMeta struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

type podObject struct {
	Metadata objectMeta `json:"metadata"`
	Status   struct {
		Phase             string      `json:"phase"`
		Conditions        []condition `json:"conditions"`
		ContainerStatuses []struct {
			Name         string `json:"name"`
			Ready        bool   `json:"ready"`
			RestartCount int    `json:"restartCount"`
			State        struct {
				Waiting *struct {
					Reason string `json:"reason"`
				} `json:"waiting"`
			} `json:"state"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

// trouble is empty for a pod that is Ready or has done its work.
func (p podObject) trouble() string {
	if p.Status.Phase == "Succeeded" {
		return ""
	}
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return ""
		}
	}
	parts := []string{p.Status.Phase}
	for _, c := range p.Status.ContainerStatuses {
		if c.Ready {
			continue
		}
		part := c.Name + " not ready"
		if c.State.Waiting != nil {
			part = c.Name + " " + c.State.Waiting.Reason
		}
		if c.RestartCount > 0 {
			part += fmt.Sprintf(", %d restarts", c.RestartCount)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

func (a api) pods(ctx context.Context) ([]podObject, error) {
	var list struct {
		Items []podObject `json:"items"`
	}
	err := a.get(ctx, "/api/v1/pods", &list)
	return list.Items, err
}

// workloads lists what `kubectl logs` takes by name, as kind -> objects.
func (a api) workloads(ctx context.Context) (map[string][]objectMeta, error) {
	found := map[string][]objectMeta{}
	for _, kind := range workloadKinds {
		var list struct {
			Items []struct {
				Metadata objectMeta `json:"metadata"`
			} `json:"items"`
		}
		if err := a.get(ctx, "/apis/apps/v1/"+kind, &list); err != nil {
			return nil, err
		}
		for _, i := range list.Items {
			found[kind] = append(found[kind], i.Metadata)
		}
	}
	return found, nil
}

var workloadKinds = []string{"deployments", "daemonsets", "statefulsets"}
