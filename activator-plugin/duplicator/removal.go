package duplicator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/api"
)

// errForeign says that a Service with a copy's name is not a copy.
var errForeign = errors.New("there is a Service of that name that Libra did not make")

// remove returns nil once the copy with the UID, or without a UID any copy of the
// revision, is gone or its deletion has begun. It tries until ctx is done. Its errors
// leave the copy's name to the caller.
func (d *Duplicator) remove(ctx context.Context, namespace, revision string, uid types.UID) error {
	for {
		var err error
		if uid != "" {
			err = d.delete(ctx, namespace, copyName(revision), uid)
		} else {
			err = d.tryRemove(ctx, namespace, revision)
		}
		if err == nil || errors.Is(err, errForeign) {
			return err
		}
		select {
		case <-d.clock.After(pollEvery):
		case <-ctx.Done():
			return err
		}
	}
}

func (d *Duplicator) tryRemove(ctx context.Context, namespace, revision string) error {
	name := copyName(revision)
	service, err := d.serving.ServingV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the Service: %w", err)
	}
	if !isCopyOf(service, revision) {
		return errForeign
	}
	return d.delete(ctx, namespace, name, service.UID)
}

// delete deletes the Service with the UID. It is no error if that is gone, or if another
// has its name now.
func (d *Duplicator) delete(ctx context.Context, namespace, name string, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	err := d.serving.ServingV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid},
		PropagationPolicy: &background,
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting the Service: %w", err)
	}
	return nil
}

// sweep removes copies that killed activators left behind: those older than any
// duplication lasts.
func (d *Duplicator) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	services, err := d.serving.ServingV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: api.CopyOfLabel})
	if err != nil {
		if ctx.Err() == nil {
			d.logger.Warnw("Cannot look for copies that were left behind", zap.Error(err))
		}
		return
	}
	for i := range services.Items {
		service := &services.Items[i]
		revision := service.Labels[api.CopyOfLabel]
		if d.clock.Since(service.CreationTimestamp.Time) < leftBehindAfter || !isCopyOf(service, revision) {
			continue
		}
		err := d.delete(ctx, service.Namespace, service.Name, service.UID)
		d.metrics.onRemoval(types.NamespacedName{Namespace: service.Namespace, Name: revision}, err, true)
		if err != nil {
			d.logger.Warnw("Cannot remove a copy that was left behind", "copy", service.Namespace+"/"+service.Name, zap.Error(err))
			continue
		}
		d.logger.Infow("Removed a copy that was left behind", "copy", service.Namespace+"/"+service.Name,
			"age", d.clock.Since(service.CreationTimestamp.Time).Round(time.Second))
	}
}
