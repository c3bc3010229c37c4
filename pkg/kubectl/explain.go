package kubectl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	autoscalerconfig "knative.dev/serving/pkg/autoscaler/config"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/activator-plugin/invocation"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/ceiling"
)

const explainTimeout = 20 * time.Second

func newExplain(o *options) *cobra.Command {
	var out output
	var size, request string
	cmd := &cobra.Command{
		Use:     "explain SERVICE",
		Short:   "Explain what a request would get, and why",
		GroupID: groupSee,
		Long: `Explain what a request to a Service's latest ready revision would get, and why: its user allocation, the mode and the
source, the prediction for the size of its input, and the result for CPU and memory.

The command asks the predictor through a forwarded port, which needs the right to create pods/portforward in the
namespace libra-system. It leaves out what only the activator knows: which other requests are in the pod, and whether its
container is warm.

With --request it explains a past request: what it got, and why. Each activator keeps its last 8,192 requests. The
command asks the activators through a forwarded port, which needs the right to create pods/portforward in the namespace
knative-serving.`,
		Example: `  # a request whose size is not known
  kubectl libra explain thumb -n shop
  # a request with an input of 2 MiB
  kubectl libra explain thumb -n shop --size 2Mi
  # the latest past request
  kubectl libra explain thumb -n shop --request latest
  # the request sent with curl -H 'traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00'
  kubectl libra explain thumb -n shop --request 0af7651916cd43dd8448eb211c80319c`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: o.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			bytes, err := parseSize(size)
			if err != nil {
				return err
			}
			namespace, err := o.namespace()
			if err != nil {
				return err
			}
			kube, err := o.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), explainTimeout)
			defer cancel()
			service := client.ObjectKey{Namespace: namespace, Name: args[0]}
			if cmd.Flags().Changed("request") {
				past, err := findRequest(ctx, kube, o.forward, service, request, time.Now())
				if err != nil {
					return err
				}
				if err := out.print(o.Out, past.document(time.Now())); err != nil {
					return err
				}
				return past.unanswered
			}
			e, err := explain(ctx, kube, o.forward, service, bytes, time.Now())
			if err != nil {
				return err
			}
			return out.print(o.Out, e.document())
		},
	}
	out.addFlag(cmd)
	cmd.Flags().StringVar(&size, "size", "", "size of the input in bytes, such as 300000 or 2Mi; without it, the size is not known")
	cmd.Flags().StringVar(&request, "request", "", "explain a past request: latest, the ID of its W3C trace, its traceparent, or its X-Request-Id")
	cmd.MarkFlagsMutuallyExclusive("size", "request")
	return cmd
}

func parseSize(value string) (int64, error) {
	if value == "" {
		return api.UnknownSize, nil
	}
	q, err := resource.ParseQuantity(value)
	if err != nil || q.Sign() < 0 || q.CmpInt64(q.Value()) != 0 {
		return 0, fmt.Errorf("--size is %.64q, want a whole number of bytes from 0, such as 300000 or 2Mi", value)
	}
	return q.Value(), nil
}

func explain(ctx context.Context, kube client.Client, to forward, service client.ObjectKey, size int64, now time.Time) (*explanation, error) {
	revision, err := latestReady(ctx, kube, service)
	if err != nil {
		return nil, err
	}
	of, err := readSettings(ctx, kube, service.Namespace)
	if err != nil {
		return nil, err
	}
	var autoscaler corev1.ConfigMap
	if err := kube.Get(ctx, client.ObjectKey{Namespace: swap.Namespace, Name: autoscalerconfig.ConfigName}, &autoscaler); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", swap.Namespace, autoscalerconfig.ConfigName, err)
	}
	e := &explanation{Namespace: service.Namespace, Service: service.Name, Revision: revision.Name, Mode: of.ModeOf(revision.Annotations)}
	policy, err := readPolicy(ctx, kube, service.Namespace)
	if err != nil {
		return nil, err
	}
	cluster, err := readPolicy(ctx, kube, settings.Namespace)
	if err != nil {
		return nil, err
	}
	asked := string(of.Mode)
	switch e.ModeBy = "mode in ConfigMap config-libra, or its default"; {
	case policy.Mode != "":
		e.ModeBy, asked = "the namespace's HarvestPolicy", string(policy.Mode)
	case cluster.Mode != "":
		e.ModeBy, asked = clustersPolicy, string(cluster.Mode)
	}
	if own, ok := revision.Annotations[api.ModeAnnotation]; ok {
		e.ModeBy, asked = "the annotation "+api.ModeAnnotation, own
	}
	switch mode, err := api.ParseMode(asked); {
	case err != nil:
		e.ModeBy = fmt.Sprintf("%s says %.64q, which is not a mode", e.ModeBy, asked)
	case mode != e.Mode:
		e.ModeBy = fmt.Sprintf("%s says %.64q, but the cluster and the namespace allow only modes up to %s", e.ModeBy, asked, of.MaxMode)
	}
	if e.Domain, e.DomainBy = of.Domain, clustersPolicy; policy.Domain != "" {
		e.DomainBy = "the namespace's HarvestPolicy"
	}
	if err := e.place(ctx, kube, revision, of, policy, cluster); err != nil {
		return nil, err
	}
	if size != api.UnknownSize {
		e.Size = &size
	}
	// The rest of the explanation is useful without a prediction, too.
	p, err := e.predict(ctx, kube, to, revision, size)
	if err != nil {
		e.PredictorError = err.Error()
	}
	if e.Explanation, err = invocation.Explain(revision, of, e.Source, &autoscaler, p, now); err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s: %w", swap.Namespace, autoscalerconfig.ConfigName, err)
	}
	e.Prediction = p
	return e, nil
}

// clustersPolicy names the cluster's default.
const clustersPolicy = "HarvestPolicy " + settings.Namespace + "/" + v1alpha1.HarvestPolicyName

func latestReady(ctx context.Context, kube client.Client, name client.ObjectKey) (*servingv1.Revision, error) {
	var service servingv1.Service
	if err := kube.Get(ctx, name, &service); err != nil {
		return nil, fmt.Errorf("reading Service %s: %w", name, err)
	}
	if service.Status.LatestReadyRevisionName == "" {
		return nil, fmt.Errorf("service %s has no ready revision: look at `kubectl -n %s get revisions`", name, name.Namespace)
	}
	revision := &servingv1.Revision{}
	if err := kube.Get(ctx, client.ObjectKey{Namespace: name.Namespace, Name: service.Status.LatestReadyRevisionName}, revision); err != nil {
		return nil, fmt.Errorf("reading Revision %s/%s: %w", name.Namespace, service.Status.LatestReadyRevisionName, err)
	}
	if !api.OptedIn(revision.Labels) {
		return nil, fmt.Errorf("revision %s of Service %s has not opted in, so Libra does nothing for it: set the label %s: %q on the Service's spec.template",
			revision.Name, name, api.EnabledLabel, api.EnabledValue)
	}
	return revision, nil
}

// place finds the source, and the ceilings on the nodes that the revision has pods on. A node's source takes precedence
// over its namespace's. If there are pods on nodes of both sources, the first pod's source is explained.
func (e *explanation) place(ctx context.Context, kube client.Client, revision *servingv1.Revision, of settings.Settings, policy, cluster v1alpha1.HarvestPolicySpec) error {
	var namespace corev1.Namespace
	if err := kube.Get(ctx, client.ObjectKey{Name: revision.Namespace}, &namespace); err != nil {
		return fmt.Errorf("reading namespace %s: %w", revision.Namespace, err)
	}
	var by string
	e.Source, by = of.SourceOf(nil, namespace.Labels, policy)
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(revision.Namespace), client.MatchingLabels{serving.RevisionLabelKey: revision.Name}); err != nil {
		return fmt.Errorf("reading pods of Revision %s/%s: %w", revision.Namespace, revision.Name, err)
	}
	seen := map[string]bool{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.NodeName == "" || seen[pod.Spec.NodeName] {
			continue
		}
		var node corev1.Node
		if err := kube.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &node); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("reading node %s: %w", pod.Spec.NodeName, err)
		}
		source, sourceBy := of.SourceOf(node.Labels, namespace.Labels, policy)
		if len(seen) == 0 {
			e.Source, by = source, sourceBy
		}
		seen[node.Name] = true
		// If the annotation cannot be read, the ceiling is the allocation, and the annotation is among what is refused.
		milli, _ := ceiling.Of(pod, api.FromList(revision.Spec.GetContainer().Resources.Limits).CPUMilli, node.Status.Allocatable.Cpu().MilliValue(), of)
		e.Nodes = append(e.Nodes, nodeCeiling{Node: node.Name, Source: source, CeilingMilliCores: milli})
	}
	switch e.SourceBy = "source in ConfigMap config-libra, or its default"; {
	case by == "policy":
		e.SourceBy = "the namespace's HarvestPolicy"
	case by != "":
		e.SourceBy = fmt.Sprintf("the label %s of the %s", api.SourceLabel, by)
	case cluster.Source != "":
		e.SourceBy = clustersPolicy
	}
	return nil
}

// predictorPort is the name of the predictor's port, and predictorPrefix the prefix of its pods' names.
const (
	predictorPort   = "http"
	predictorPrefix = "libra-predictor"
)

// predictorAt returns the address of a predictor, which is valid until close is called.
func predictorAt(ctx context.Context, kube client.Client, to forward) (base *url.URL, close func(), err error) {
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(settings.Namespace)); err != nil {
		return nil, nil, fmt.Errorf("reading pods of namespace %s: %w", settings.Namespace, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; isPredictor(pod) {
			return to.named(ctx, pod, predictorPort)
		}
	}
	return nil, nil, errors.New("no predictor is ready: look at `kubectl -n " + settings.Namespace + " get pods`")
}

func isPredictor(pod *corev1.Pod) bool {
	name := cmp.Or(pod.GenerateName, pod.Name)
	return strings.HasPrefix(name, predictorPrefix) && pod.DeletionTimestamp == nil && api.PodReady(pod)
}
