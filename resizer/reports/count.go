package reports

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/resizer/backoff"
)

// pageSize is how many reports are listed at a time.
const pageSize = 500

// find finds the namespaces that have a report already.
func (w *Writer) find(ctx context.Context) error {
	found := map[string]*namespace{}
	list := metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("FunctionReportList"))
	for {
		pageCtx, cancel := context.WithTimeout(ctx, readTimeout)
		err := w.direct.List(pageCtx, &list, client.Limit(pageSize), client.Continue(list.Continue))
		cancel()
		if err != nil {
			return fmt.Errorf("listing the existing FunctionReports: %w", err)
		}
		for i := range list.Items {
			if list.Items[i].Name == v1alpha1.FunctionReportName {
				name := list.Items[i].Namespace
				found[name] = newNamespace(name)
			}
		}
		if list.Continue == "" {
			break
		}
	}
	w.namespaces = found
	return nil
}

func newNamespace(name string) *namespace {
	return &namespace{name: name, retry: backoff.Delay{Min: retryMin, Max: retryMax}}
}

// count returns, by namespace with opted-in functions, the functions that had requests, or lent or
// borrowed something, in the window. It ignores what Redis has about others. partly is the error about
// counts that were left out.
func (w *Writer) count(ctx context.Context, now time.Time) (functions map[string][]counted, partly error, err error) {
	readCtx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	read, err := w.store.ReadReports(readCtx, slotsOf(now))
	if err != nil {
		return nil, nil, err
	}
	partly = w.window.take(read)
	slots := slotsOf(now)
	sums, latest := w.window.sum(slots[0]), w.window.sum(slots[len(slots)-latestSlots])

	var revisions servingv1.RevisionList
	if err := w.cached.List(ctx, &revisions, client.MatchingLabels{api.EnabledLabel: api.EnabledValue}); err != nil {
		return nil, nil, fmt.Errorf("listing the Revisions that opted in: %w", err)
	}
	functions = map[string][]counted{}
	for i := range revisions.Items {
		revision := &revisions.Items[i]
		if api.IsCopy(revision.Labels) {
			continue
		}
		of := functions[revision.Namespace]
		name := types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name}
		if s := sums[name]; s != nil {
			f := counted{revision: revision, sums: *s}
			if s := latest[name]; s != nil {
				f.latest = *s
			}
			of = append(of, f)
		}
		functions[revision.Namespace] = of
		if w.namespaces[revision.Namespace] == nil {
			w.namespaces[revision.Namespace] = newNamespace(revision.Namespace)
		}
	}
	return functions, partly, nil
}

// inTurn returns the namespaces, those written the longest ago first.
func (w *Writer) inTurn() []*namespace {
	return slices.SortedFunc(maps.Values(w.namespaces), func(a, b *namespace) int {
		return cmp.Or(a.writtenAt.Compare(b.writtenAt), cmp.Compare(a.name, b.name))
	})
}

// digest changes with everything that a report says except the time.
func (w *Writer) digest(functions []counted) uint64 {
	var h maphash.Hash
	h.SetSeed(w.window.seed)
	for i := range functions {
		f := &functions[i]
		maphash.WriteComparable(&h, f.sums)
		maphash.WriteComparable(&h, f.latest)
		for _, text := range []string{
			f.revision.Name, string(w.live.For(f.revision.Namespace).ModeOf(f.revision.Annotations)), string(w.live.Source(f.revision.Namespace, "")),
		} {
			maphash.WriteComparable(&h, text)
		}
	}
	return h.Sum64()
}
