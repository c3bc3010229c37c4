// Package knativetest runs Knative's own throttlers, to test what comes before them.
package knativetest

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	netcfg "knative.dev/networking/pkg/config"
	kubeclient "knative.dev/pkg/client/injection/kube/client"
	endpointsinformer "knative.dev/pkg/client/injection/kube/informers/core/v1/endpoints"
	_ "knative.dev/pkg/client/injection/kube/informers/core/v1/endpoints/fake"
	_ "knative.dev/pkg/client/injection/kube/informers/core/v1/service/fake"
	rtesting "knative.dev/pkg/reconciler/testing"
	activatornet "knative.dev/serving/pkg/activator/net"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	servingclient "knative.dev/serving/pkg/client/injection/client"
	revisioninformer "knative.dev/serving/pkg/client/injection/informers/serving/v1/revision"
	_ "knative.dev/serving/pkg/client/injection/informers/serving/v1/revision/fake"
	"knative.dev/serving/pkg/networking"
)

// Port is the pods' port.
const Port = 8012

// Knative has a throttler for each of several activators, in a cluster with one revision.
type Knative struct {
	// Context has the fake clients of the cluster.
	Context    context.Context
	Throttlers []*activatornet.Throttler
	rev        types.NamespacedName
}

// New returns a cluster whose revision has no pods yet. It lives until the test ends.
func New(t testing.TB, rev types.NamespacedName, concurrency int64, activators int) *Knative {
	t.Helper()
	ctx, cancel, _ := rtesting.SetupFakeContextWithCancel(t)
	revision := &v1.Revision{
		ObjectMeta: metav1.ObjectMeta{Namespace: rev.Namespace, Name: rev.Name},
		Spec:       v1.RevisionSpec{ContainerConcurrency: ptr.To(concurrency)},
	}
	if _, err := servingclient.Get(ctx).ServingV1().Revisions(rev.Namespace).Create(ctx, revision, metav1.CreateOptions{}); err != nil {
		t.Fatal("Create() =", err)
	}
	endpoints, revisions := endpointsinformer.Get(ctx), revisioninformer.Get(ctx)
	wait, err := rtesting.RunAndSyncInformers(ctx, endpoints.Informer(), revisions.Informer())
	if err != nil {
		t.Fatal("RunAndSyncInformers() =", err)
	}
	k := &Knative{Context: ctx, rev: rev}
	var running sync.WaitGroup
	for i := range activators {
		throttler := activatornet.NewThrottler(ctx, ActivatorIP(i))
		running.Go(func() { throttler.Run(ctx, http.DefaultTransport, false, netcfg.MeshCompatibilityModeDisabled) })
		k.Throttlers = append(k.Throttlers, throttler)
	}
	t.Cleanup(func() {
		cancel()
		wait()
		running.Wait()
	})
	return k
}

// ActivatorIP returns the address of an activator. The first is 0.
func ActivatorIP(i int) string { return fmt.Sprintf("130.0.0.%03d", i+1) }

// Endpoints returns the informer that the throttlers follow.
func (k *Knative) Endpoints() cache.SharedIndexInformer {
	return endpointsinformer.Get(k.Context).Informer()
}

// Delete deletes the revision.
func (k *Knative) Delete(t testing.TB) {
	t.Helper()
	if err := servingclient.Get(k.Context).ServingV1().Revisions(k.rev.Namespace).Delete(k.Context, k.rev.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal("Delete() =", err)
	}
}

// Scale sets the revision's pods.
func (k *Knative) Scale(t testing.TB, ips ...string) {
	t.Helper()
	k.have(t, networking.ServiceTypePrivate, ips...)
}

// Activators sets how many activators the revision has: the first n.
func (k *Knative) Activators(t testing.TB, n int) {
	t.Helper()
	var ips []string
	for i := range n {
		ips = append(ips, ActivatorIP(i))
	}
	k.have(t, networking.ServiceTypePublic, ips...)
}

func (k *Knative) have(t testing.TB, kind networking.ServiceType, ips ...string) {
	t.Helper()
	//lint:ignore SA1019 Knative's throttler goes by them.
	object := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.rev.Namespace, Name: k.rev.Name + "-" + string(kind),
			Labels: map[string]string{
				networking.ServiceTypeKey: string(kind),
				serving.RevisionUID:       "uid",
				serving.RevisionLabelKey:  k.rev.Name,
			},
		},
		//lint:ignore SA1019 As above.
		Subsets: []corev1.EndpointSubset{{Ports: []corev1.EndpointPort{{Name: "http", Port: Port}}}},
	}
	for _, ip := range ips {
		object.Subsets[0].Addresses = append(object.Subsets[0].Addresses, corev1.EndpointAddress{IP: ip})
	}
	all := kubeclient.Get(k.Context).CoreV1().Endpoints(k.rev.Namespace)
	_, err := all.Update(k.Context, object, metav1.UpdateOptions{})
	if err != nil {
		_, err = all.Create(k.Context, object, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal("Create() =", err)
	}
}
