package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

const (
	// reportStale is how old a report may be. The resizer writes one every ten seconds; while nothing changes,
	// with the first round after a minute.
	reportStale = 2 * time.Minute

	reportRemedy = "look at `kubectl -n libra-system get pods` and `kubectl -n libra-system logs deployment/libra-resizer`"
)

// scope is which namespaces a command is about.
type scope struct{ all bool }

func (s *scope) addFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&s.all, "all-namespaces", "A", false, "in all namespaces")
}

// namespaceOf returns the namespace that a command is about; empty for all of them.
func (o *options) namespaceOf(s scope) (string, error) {
	if s.all {
		return "", nil
	}
	return o.namespace()
}

// begin is the first step of the commands that are about namespaces.
func (o *options) begin(s scope, out output) (namespace string, kube client.Client, err error) {
	if err := out.check(); err != nil {
		return "", nil, err
	}
	if namespace, err = o.namespaceOf(s); err != nil {
		return "", nil, err
	}
	kube, err = o.client()
	return namespace, kube, err
}

// namespaceReport is what is known about a namespace.
type namespaceReport struct {
	Namespace string `json:"namespace"`
	// Problem is why the figures are missing or old; empty when they are neither.
	Problem string                         `json:"problem,omitempty"`
	Report  *v1alpha1.FunctionReportStatus `json:"report,omitempty"`
}

// readReports returns reports sorted by namespace. A namespace that has functions but no report is among them,
// with what is wrong there, if the caller may list Revisions.
func readReports(ctx context.Context, kube client.Client, namespace string, now time.Time) ([]namespaceReport, error) {
	var list v1alpha1.FunctionReportList
	if err := kube.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("the cluster does not know the kind FunctionReport, so Libra is not installed or is older than this plugin; `kubectl libra check` says what is missing: %w", err)
		}
		return nil, fmt.Errorf("reading FunctionReports: %w", err)
	}
	var found []namespaceReport
	for i := range list.Items {
		report := &list.Items[i]
		if report.Name != v1alpha1.FunctionReportName {
			continue
		}
		n := namespaceReport{Namespace: report.Namespace, Report: &report.Status}
		if age := now.Sub(report.Status.Updated.Time); report.Status.Updated.IsZero() {
			n.Problem, n.Report = "its FunctionReport was never written", nil
		} else if age > reportStale {
			n.Problem = fmt.Sprintf("its FunctionReport is %s old", duration.HumanDuration(age))
		}
		found = append(found, n)
	}
	unreported, err := namespacesOfFunctions(ctx, kube, namespace)
	switch {
	case apierrors.IsForbidden(err) && len(found) > 0:
	case apierrors.IsForbidden(err) && namespace != "":
		found = append(found, namespaceReport{Namespace: namespace, Problem: "it has no FunctionReport, and you may not list Revisions to see whether a function has opted in"})
	case err != nil:
		return nil, err
	}
	for _, name := range unreported {
		if !slices.ContainsFunc(found, func(n namespaceReport) bool { return n.Namespace == name }) {
			found = append(found, namespaceReport{Namespace: name, Problem: "it has functions that opted in, but no FunctionReport"})
		}
	}
	slices.SortFunc(found, func(a, b namespaceReport) int { return cmp.Compare(a.Namespace, b.Namespace) })
	return found, nil
}

// namespacesOfFunctions returns the namespaces that have functions, sorted. It returns none if there is no Knative.
func namespacesOfFunctions(ctx context.Context, kube client.Client, namespace string) ([]string, error) {
	var revisions metav1.PartialObjectMetadataList
	revisions.SetGroupVersionKind(servingv1.SchemeGroupVersion.WithKind("RevisionList"))
	err := kube.List(ctx, &revisions, client.InNamespace(namespace), client.MatchingLabels{api.EnabledLabel: api.EnabledValue})
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Revisions: %w", err)
	}
	var names []string
	for _, r := range revisions.Items {
		names = append(names, r.Namespace)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// reportNotes says what is wrong with reports, or that no function has opted in.
func reportNotes(reports []namespaceReport, namespace string) (notes []string) {
	for _, n := range reports {
		if n.Problem != "" {
			notes = append(notes, fmt.Sprintf("Namespace %s: %s; %s", n.Namespace, n.Problem, reportRemedy))
		}
	}
	if len(reports) == 0 {
		in := "in any namespace"
		if namespace != "" {
			in = "in namespace " + namespace
		}
		notes = append(notes, fmt.Sprintf("No function %s has opted in: to opt one in, set the label %s: %q on the spec.template of its Service", in, api.EnabledLabel, api.EnabledValue))
	}
	return notes
}

// reported is a reported function, with its namespace.
type reported struct {
	Namespace               string `json:"namespace"`
	v1alpha1.FunctionStatus `json:",inline"`
}

// functionsOf returns the functions in all reports, or only those of one Service.
func functionsOf(reports []namespaceReport, service string) (functions []reported) {
	for _, n := range reports {
		if n.Report == nil {
			continue
		}
		for _, f := range n.Report.Functions {
			if service == "" || f.Service == service || f.Revision == service {
				functions = append(functions, reported{n.Namespace, f})
			}
		}
	}
	return functions
}

// name is the name by which the owner knows a function.
func (f reported) name() string { return cmp.Or(f.Service, f.Revision) }

// volume formats CPU and memory, as 250m/64Mi. It is empty when both are zero.
func volume(list corev1.ResourceList) string {
	if r := api.FromList(list); !r.IsZero() {
		return r.String()
	}
	return ""
}

// keep drops the functions that are not of the Service.
func (n *namespaceReport) keep(service string) {
	if n.Report == nil {
		return
	}
	report := *n.Report
	report.Functions = nil
	for _, f := range functionsOf([]namespaceReport{*n}, service) {
		report.Functions = append(report.Functions, f.FunctionStatus)
	}
	n.Report = &report
}
