package forward

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

func slice(name string, of discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "knative-serving", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "activator-service"}},
		AddressType: of, Endpoints: endpoints,
	}
}

func endpoint(ip, zone string, ready *bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{ip}, Zone: &zone, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
}

func TestActivatorsAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := slice("one", discoveryv1.AddressTypeIPv4,
			endpoint("10.0.0.1", "x", nil), endpoint("10.0.0.2", "x", ptr.To(true)), endpoint("10.0.0.3", "y", ptr.To(false)), endpoint("10.0.0.4", "", nil))
		kube := fake.NewClientset(first,
			slice("two", discoveryv1.AddressTypeIPv4, endpoint("10.0.0.5", "y", nil)),
			slice("three", discoveryv1.AddressTypeIPv6, endpoint("fd00::6", "y", nil)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a := NewActivators("10.0.0.1", 10)
		if err := a.Follow(ctx, kube, "knative-serving", zap.NewNop().Sugar()); err != nil {
			t.Fatal(err)
		}
		sees := func(want map[string]string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			got := map[string]string{}
			a.mu.Lock()
			defer a.mu.Unlock()
			for zone, peers := range a.zones {
				for _, p := range peers {
					got[p.ip] = zone
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("it sees (-want +got):\n%s", diff)
			}
		}
		sees(map[string]string{"10.0.0.2": "x", "10.0.0.5": "y"})
		first.Endpoints = first.Endpoints[:1]
		if _, err := kube.DiscoveryV1().EndpointSlices("knative-serving").Update(ctx, first, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		sees(map[string]string{"10.0.0.5": "y"})
		if err := kube.DiscoveryV1().EndpointSlices("knative-serving").Delete(ctx, "two", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		sees(map[string]string{})
		cancel()
		synctest.Wait()
	})
}

func TestTheOneWithTheFewestIsTaken(t *testing.T) {
	a, now := NewActivators("", 3), time.Now()
	a.set(map[string]string{"b": "x", "c": "x", "d": "y"})
	taken := map[string]int{}
	var all []*peer
	for range 6 {
		p := a.take("x", now)
		taken[p.ip]++
		all = append(all, p)
	}
	if got := fmt.Sprint(taken); got != "map[b:3 c:3]" {
		t.Errorf("taken %v, want as many of each", got)
	}
	if a.take("x", now) != nil || a.reachable("x", now) || !a.reachable("y", now) || a.reachable("z", now) {
		t.Error("one was to be had that has all that it takes, or one was not that has none")
	}
	// An activator that stays keeps its state, and one that is gone can still be released.
	a.set(map[string]string{"b": "x"})
	for _, p := range all {
		p.release()
	}
	if p := a.take("x", now); p == nil || p.outstanding != 1 {
		t.Errorf("took %v", p)
	}
	a.doubt(a.peers["b"], now)
	if a.reachable("x", now) || a.reachable("x", now.Add(doubtedFor-1)) || !a.reachable("x", now.Add(doubtedFor)) {
		t.Error("it is not doubted for as long as it should be")
	}
}
