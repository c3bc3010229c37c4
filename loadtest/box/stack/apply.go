package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// fieldManager owns what the box applies. Libra applies with another one, so that
// their fields can be told apart.
const fieldManager = "box"

const (
	applyParallel = 8
	retryInterval = 250 * time.Millisecond
)

// applier applies objects of any kind, even if the kind was defined a moment ago.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(config *rest.Config) (applier, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the API server's own fairness is enough for one client
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return applier{}, err
	}
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return applier{}, err
	}
	return applier{client, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discover))}, nil
}

// applyAll applies objects that do not depend on each other.
func (a applier) applyAll(ctx context.Context, objects []object) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(applyParallel)
	for _, o := range objects {
		g.Go(func() error {
			if err := a.apply(ctx, o); err != nil {
				return fmt.Errorf("apply %s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
			}
			return nil
		})
	}
	return g.Wait()
}

// apply applies one object, and retries while the cluster is not ready for it.
func (a applier) apply(ctx context.Context, o object) error {
	for {
		err := a.try(ctx, o, false)
		if err == nil || !notYet(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(retryInterval):
		}
	}
}

func (a applier) try(ctx context.Context, o object, dryRun bool) error {
	resource, err := a.resource(o)
	if err != nil {
		return err
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	_, err = resource.Apply(ctx, o.GetName(), o, options)
	return err
}

func (a applier) resource(o object) (dynamic.ResourceInterface, error) {
	gvk := o.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		a.mapper.Reset() // it may be defined by now
	}
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return a.client.Resource(mapping.Resource), nil
	}
	return a.client.Resource(mapping.Resource).Namespace(o.GetNamespace()), nil
}

// notYet reports whether an error may pass by itself: a definition that is not
// served yet, a namespace that does not exist yet, a webhook that does not answer
// yet, an overloaded API server.
func notYet(err error) bool {
	var network net.Error
	return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) || apierrors.IsConflict(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || errors.As(err, &network)
}
