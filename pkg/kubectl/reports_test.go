package kubectl

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// Whoever may not list Revisions sees the reports. If there is none, the reason is not that no function has opted in.
func TestReportsWithoutTheRightToListRevisions(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	read := func(reports ...client.Object) ([]namespaceReport, error) {
		kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(reports...).WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, revisions := list.(*metav1.PartialObjectMetadataList); revisions {
					return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("revisions").GroupResource(), "", nil)
				}
				return c.List(ctx, list, opts...)
			},
		}).Build()
		return readReports(t.Context(), kube, "shop", now)
	}
	if found, err := read(); err != nil || len(found) != 1 || !strings.Contains(found[0].Problem, "may not list Revisions") {
		t.Errorf("without a report it finds %v (%v), want that it may not list Revisions", found, err)
	}
	report := &v1alpha1.FunctionReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: v1alpha1.FunctionReportName},
		Status:     v1alpha1.FunctionReportStatus{Updated: metav1.NewTime(now)},
	}
	if found, err := read(report); err != nil || len(found) != 1 || found[0].Problem != "" {
		t.Errorf("with a report it finds %v (%v), want the report", found, err)
	}
}

// Under the source node no CPU is lent, and the mode lend gives a function nothing.
func TestWhatThereIsToGain(t *testing.T) {
	of := func(mode api.Mode, source api.Source, unused, wanted int64) saving {
		return saving{Mode: string(mode), Source: string(source), UnusedMilliCores: unused, WantedMilliCores: wanted}
	}
	const owners, node = "owners, 0.50 cores that functions do not use could be lent, and 0.10 cores more could be used", "node, functions could use 0.20 cores beyond theirs"
	for name, tc := range map[string]struct {
		functions []saving
		want      []string
	}{
		"owners":       {[]saving{of(api.ModeObserve, api.SourceOwners, 500, 100)}, []string{owners}},
		"node":         {[]saving{of(api.ModeObserve, api.SourceNode, 500, 200)}, []string{node}},
		"both":         {[]saving{of(api.ModeObserve, api.SourceNode, 500, 200), of(api.ModeObserve, api.SourceOwners, 500, 100)}, []string{owners, node}},
		"only unused":  {[]saving{of(api.ModeObserve, api.SourceNode, 500, 0)}, nil},
		"not observed": {[]saving{of(api.ModeFull, api.SourceNode, 500, 200), of(api.ModeLend, api.SourceOwners, 500, 100)}, nil},
	} {
		notes := (&savingsDocument{Functions: tc.functions}).pitch()
		if !slices.EqualFunc(notes, tc.want, strings.Contains) {
			t.Errorf("%s: it says %q, want %q", name, notes, tc.want)
		}
	}
}
