package reports

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api/v1alpha1"
)

// reconcile brings the report of a namespace up to date.
func (w *Writer) reconcile(ctx context.Context, n *namespace, functions []counted, optedIn bool, now time.Time) error {
	// 1. Remove it after a long time without opted-in functions.
	switch {
	case optedIn:
		n.emptyAt = time.Time{}
	case n.emptyAt.IsZero():
		n.emptyAt = now
	case now.Sub(n.emptyAt) >= removeAfter:
		return w.remove(ctx, n)
	}

	// 2. Leave it for a while if nothing has changed.
	slices.SortFunc(functions, func(a, b counted) int { return strings.Compare(a.revision.Name, b.revision.Name) })
	digest := w.digest(functions)
	if digest == n.digest && now.Sub(n.writtenAt) < unchanged {
		return nil
	}

	// 3. Write it.
	if err := w.limiter.Wait(ctx); err != nil {
		return nil // this round is over: the report comes first in the next
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout) // the round's end stops no write that has begun
	defer cancel()
	window := now.Sub(slotsOf(now)[0].Begin()).Round(time.Second)
	there, err := w.write(ctx, n, statusOf(functions, w.live, now, window), optedIn)
	if err != nil {
		return fmt.Errorf("writing FunctionReport %s/%s: %w", n.name, v1alpha1.FunctionReportName, err)
	}
	n.digest, n.writtenAt = digest, now
	if !there && !optedIn {
		delete(w.namespaces, n.name)
	}
	return nil
}

// write writes a status. If there is no report, it makes one first when create says so. there says
// whether there is one now.
func (w *Writer) write(ctx context.Context, n *namespace, status v1alpha1.FunctionReportStatus, create bool) (there bool, err error) {
	if n.written != nil {
		err := w.update(ctx, n, n.written, status)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err == nil, err
		}
		n.written = nil // another changed or removed it
	}
	object, err := w.get(ctx, n.name, create)
	if object == nil || err != nil {
		return false, err
	}
	err = w.update(ctx, n, object, status)
	return err == nil, err
}

func (w *Writer) update(ctx context.Context, n *namespace, object *v1alpha1.FunctionReport, status v1alpha1.FunctionReportStatus) error {
	object.Status = status
	if err := w.kube.Status().Update(ctx, object); err != nil {
		return err
	}
	// Keep no status: there may be many, and they are large.
	n.written = &v1alpha1.FunctionReport{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.Namespace, Name: object.Name, UID: object.UID, ResourceVersion: object.ResourceVersion,
	}}
	return nil
}

// get returns the report of a namespace. If there is none, it makes one when create says so. It returns
// nil when there is none, also in a namespace that takes no new one because it is being deleted.
func (w *Writer) get(ctx context.Context, name string, create bool) (*v1alpha1.FunctionReport, error) {
	object := &v1alpha1.FunctionReport{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: v1alpha1.FunctionReportName}}
	err := w.direct.Get(ctx, client.ObjectKeyFromObject(object), object)
	if !apierrors.IsNotFound(err) {
		return object, err
	}
	if !create {
		return nil, nil
	}
	object = &v1alpha1.FunctionReport{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: v1alpha1.FunctionReportName}}
	if err := w.kube.Create(ctx, object); apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return object, nil
}

func (w *Writer) remove(ctx context.Context, n *namespace) error {
	if err := w.limiter.Wait(ctx); err != nil {
		return nil // the next round does it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	object := &v1alpha1.FunctionReport{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: v1alpha1.FunctionReportName}}
	if err := w.kube.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing FunctionReport %s/%s, whose namespace has had no opted-in function for %v: %w", n.name, object.Name, removeAfter, err)
	}
	delete(w.namespaces, n.name)
	return nil
}
