package check

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	autoscalerconfig "knative.dev/serving/pkg/autoscaler/config"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/activator-plugin/invocation"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/resizer/eligible"
)

var functionChecks = []Check{
	{
		ID: "function-label", run: functionLabel,
		Looks: "the label `libra.dev/enabled`: is it on the template and not only on the Service, and is it `\"true\"`?",
	},
	{
		ID: "function-limits", run: perFunction(functionLimits),
		Looks: "functions without limits: limits decide what a function is owed and can lend",
		Fine:  "every function has limits of CPU and memory",
	},
	{
		ID: "function-concurrency", run: perFunction(functionConcurrency),
		Looks: "functions with `containerConcurrency: 0` where the source is `owners`: they neither lend nor borrow",
		Fine:  "every function has a containerConcurrency where that matters",
	},
	{
		ID: "function-in-path", run: functionInPath,
		Looks: "functions whose requests can go past the activator: `target-burst-capacity`, by annotation or in `config-autoscaler`, is not `-1`, or the autoscaler is not Knative's own",
		Fine:  "the activator stays in the path of every function",
	},
	{
		ID: "function-pod", run: functionPod,
		Looks: "pods of functions that Libra leaves alone: queue-proxy has limits, the pod as a whole has limits, or a resize would restart the container",
		Fine:  "nothing in the pods of functions keeps Libra from managing them",
	},
	{
		ID: "function-annotations", run: perFunction(functionAnnotations),
		Looks: "annotations `libra.dev/…` of functions whose values are refused, and names that nobody reads",
		Fine:  "all annotations are accepted",
	},
	{
		ID: "function-placement", run: perFunction(functionPlacement),
		Looks: "functions whose label `libra.dev/placement` names no policy: it then counts as no label",
		Fine:  "every label libra.dev/placement names a policy",
	},
}

// function is a revision that opted in and that requests may go to.
type function struct{ rev *servingv1.Revision }

func (f function) object() Object { return Object{"revision", f.rev.Namespace, f.rev.Name} }

// container returns the index and the spec of the user container.
func (f function) container() (int, *corev1.Container) {
	name := f.rev.Spec.GetContainer().Name
	for i := range f.rev.Spec.Containers {
		if f.rev.Spec.Containers[i].Name == name {
			return i, &f.rev.Spec.Containers[i]
		}
	}
	return 0, &corev1.Container{}
}

// patch returns the command that changes the revision's template.
func (f function) patch(kind string, body any) string {
	text, err := json.Marshal(body)
	if err != nil {
		return "" // no body in this file causes this
	}
	resource, name := "ksvc", f.rev.Labels[serving.ServiceLabelKey]
	if name == "" {
		resource, name = "configuration", f.rev.Labels[serving.ConfigurationLabelKey]
	}
	return fmt.Sprintf("kubectl -n %s patch %s %s --type %s -p '%s'", f.rev.Namespace, resource, name, kind, text)
}

type fields = map[string]any

func template(of fields) fields { return fields{"spec": fields{"template": of}} }

func (f function) annotate(annotation string, value any) string {
	return f.patch("merge", template(fields{"metadata": fields{"annotations": fields{annotation: value}}}))
}

// allFunctions returns the functions that requests may go to.
func (c *Cluster) allFunctions(ctx context.Context) ([]function, error) {
	return c.functions.get(func() ([]function, error) {
		if known, err := c.has(kindRevision); err != nil || !known {
			return nil, err
		}
		var list servingv1.RevisionList
		if err := c.client.List(ctx, &list, client.InNamespace(c.namespace), client.MatchingLabels{api.EnabledLabel: api.EnabledValue}); err != nil {
			return nil, err
		}
		var functions []function
		for i := range list.Items {
			rev := &list.Items[i]
			if rev.GetRoutingState() != servingv1.RoutingStateReserve && !api.IsCopy(rev.Labels) {
				functions = append(functions, function{rev})
			}
		}
		return functions, nil
	})
}

// perFunction looks at one function after the other.
func perFunction(look func(context.Context, *Cluster, function) ([]Finding, error)) look {
	return func(ctx context.Context, c *Cluster) ([]Finding, error) {
		functions, err := c.allFunctions(ctx)
		if err != nil {
			return nil, err
		}
		var found []Finding
		for _, f := range functions {
			of, err := look(ctx, c, f)
			if err != nil {
				return found, err
			}
			found = append(found, of...)
		}
		return found, nil
	}
}

func functionLabel(ctx context.Context, c *Cluster) ([]Finding, error) {
	if known, err := c.has(kindRevision); err != nil || !known {
		return nil, err
	}
	var list servingv1.ServiceList
	if err := c.client.List(ctx, &list, client.InNamespace(c.namespace)); err != nil {
		return nil, err
	}
	var found []Finding
	for _, s := range list.Items {
		about := Object{"service", s.Namespace, s.Name}
		remedy := fmt.Sprintf(`kubectl -n %s patch ksvc %s --type merge -p '{"spec":{"template":{"metadata":{"labels":{%q:%q}}}}}'`, s.Namespace, s.Name, api.EnabledLabel, api.EnabledValue)
		inTemplate, there := s.Spec.Template.Labels[api.EnabledLabel]
		switch {
		case there && inTemplate != api.EnabledValue && inTemplate != "false":
			found = append(found, warning(about, remedy, "label %s of its template is %q, want %q: it did not opt in", api.EnabledLabel, inTemplate, api.EnabledValue))
		case !there && api.OptedIn(s.Labels):
			found = append(found, warning(about, remedy, "label %s is on the Service, want it on the template: it did not opt in", api.EnabledLabel))
		}
	}
	functions, err := c.allFunctions(ctx)
	if err != nil {
		return found, err
	}
	return append(found, fine(Object{Kind: "revisions", Namespace: c.namespace}, "%d revisions that requests may go to have opted in", len(functions))), nil
}

func functionLimits(_ context.Context, _ *Cluster, f function) ([]Finding, error) {
	index, container := f.container()
	limits := api.FromList(container.Resources.Limits)
	var missing []string
	add := fields{}
	for _, of := range []struct {
		name  corev1.ResourceName
		is    int64
		value string
	}{{corev1.ResourceCPU, limits.CPUMilli, "1"}, {corev1.ResourceMemory, limits.MemoryBytes, "512Mi"}} {
		if of.is == 0 {
			missing = append(missing, string(of.name))
			add[string(of.name)] = of.value
			continue
		}
		add[string(of.name)] = container.Resources.Limits[of.name]
	}
	if len(missing) == 0 {
		return nil, nil
	}
	resources := fields{"limits": add}
	if len(container.Resources.Requests) > 0 {
		resources["requests"] = container.Resources.Requests
	}
	remedy := f.patch("json", []fields{{"op": "add", "path": fmt.Sprintf("/spec/template/spec/containers/%d/resources", index), "value": resources}}) + "  # with the limits that it may use"
	if len(missing) == 2 {
		return []Finding{failure(f.object(), remedy, "its container has no limits, so it is owed nothing: it is only observed")}, nil
	}
	return []Finding{warning(f.object(), remedy, "its container has no limit of %s, which it neither lends nor borrows then", missing[0])}, nil
}

func functionConcurrency(ctx context.Context, c *Cluster, f function) ([]Finding, error) {
	if f.rev.Spec.GetContainerConcurrency() != 0 {
		return nil, nil
	}
	where, err := c.lendsOfOwners(ctx, f.rev.Namespace)
	if err != nil || where == "" {
		return nil, err
	}
	remedy := f.patch("merge", template(fields{"spec": fields{"containerConcurrency": 1}}))
	return []Finding{failure(f.object(), remedy, "its containerConcurrency is 0 and the source is owners (%s): it neither lends nor borrows", where)}, nil
}

func functionInPath(ctx context.Context, c *Cluster) ([]Finding, error) {
	functions, err := c.allFunctions(ctx)
	if err != nil || len(functions) == 0 {
		return nil, err
	}
	cm, err := c.configMap(ctx, swap.Namespace, autoscalerconfig.ConfigName)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, f := range functions {
		why, err := invocation.Bypass(f.rev, cm)
		if err != nil {
			return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", swap.Namespace, autoscalerconfig.ConfigName, err)
		}
		if why != nil {
			found = append(found, warning(f.object(), f.annotate(why.Annotation, why.Value), "%v: requests can go past the activator, so the function lends nothing and is not learned from", why))
		}
	}
	return found, nil
}

// queueProxyAnnotations give the queue-proxy of a revision limits.
var queueProxyAnnotations = []string{
	serving.QueueSidecarCPUResourceLimitAnnotationKey,
	serving.QueueSidecarMemoryResourceLimitAnnotationKey,
	//lint:ignore SA1019 it still gives limits
	serving.QueueSidecarResourcePercentageAnnotationKey,
}

// functionPod reports at most one pod of each revision.
func functionPod(ctx context.Context, c *Cluster) ([]Finding, error) {
	functions, err := c.allFunctions(ctx)
	if err != nil || len(functions) == 0 {
		return nil, err
	}
	pods, err := c.functionPods(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, f := range functions {
		for i := range pods {
			if pods[i].Namespace != f.rev.Namespace || pods[i].Labels[serving.RevisionLabelKey] != f.rev.Name {
				continue
			}
			if finding, is := leftAlone(f, &pods[i]); is {
				found = append(found, finding)
				break
			}
		}
	}
	return found, nil
}

func leftAlone(f function, pod *corev1.Pod) (finding Finding, is bool) {
	_, container := f.container()
	obstacle := eligible.Obstacle(pod, cmp.Or(container.Name, api.UserContainer))
	if obstacle == "" {
		return Finding{}, false
	}
	why, advice, _ := strings.Cut(obstacle, "; ")
	remedy := fmt.Sprintf("kubectl -n %s get pod %s -o yaml  # %s", pod.Namespace, pod.Name, advice)
	if slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return c.Name == api.QueueProxyContainer && len(c.Resources.Limits) > 0
	}) {
		unlimited := fields{}
		for _, annotation := range queueProxyAnnotations {
			unlimited[annotation] = nil
		}
		remedy = f.patch("merge", template(fields{"metadata": fields{"annotations": unlimited}}))
	}
	return failure(f.object(), remedy, "pod %s is only observed: %s", pod.Name, why), true
}

func functionAnnotations(_ context.Context, _ *Cluster, f function) ([]Finding, error) {
	var found []Finding
	for _, refused := range api.RefusedAnnotations(f.rev.Annotations) {
		found = append(found, warning(f.object(), f.annotate(refused.Name, nil), "%v", refused.Err))
	}
	if unknown := api.UnknownNames(f.rev.Annotations, f.rev.Labels); len(unknown) > 0 {
		found = append(found, warning(f.object(), "write the names in docs/reference/labels.md as they are there: annotations among the template's annotations, labels among its labels",
			"nobody reads %s there", strings.Join(unknown, ", ")))
	}
	return found, nil
}

func functionPlacement(ctx context.Context, c *Cluster, f function) ([]Finding, error) {
	name := f.rev.Labels[api.PlacementLabel]
	if name == "" {
		return nil, nil
	}
	known, err := c.placementPolicies(ctx)
	if err != nil || known[types.NamespacedName{Namespace: f.rev.Namespace, Name: name}] || known[types.NamespacedName{Name: name}] {
		return nil, err
	}
	return []Finding{warning(f.object(), f.patch("merge", template(fields{"metadata": fields{"labels": fields{api.PlacementLabel: nil}}})),
		"label %s is %q, and neither a PlacementPolicy of its namespace nor a ClusterPlacementPolicy has that name: requests go to any pod, or where the policy default says",
		api.PlacementLabel, name)}, nil
}
