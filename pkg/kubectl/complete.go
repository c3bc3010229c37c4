package kubectl

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
)

// completionTimeout is how long a shell waits for names.
const completionTimeout = 3 * time.Second

// complete registers what a shell offers for the value of a flag.
func complete(cmd *cobra.Command, flag string, by cobra.CompletionFunc) {
	utilruntime.Must(cmd.RegisterFlagCompletionFunc(flag, by))
}

// completeNamespaces completes -n of every command.
func (o *options) completeNamespaces(root *cobra.Command) {
	complete(root, "namespace", func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return o.names(cmd.Context(), &corev1.NamespaceList{}, "", nil)
	})
}

// completeServices offers the namespace's opted-in Services, as the first argument.
func (o *options) completeServices(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return o.firstArgument(cmd, args, &servingv1.ServiceList{}, func(object runtime.Object) bool {
		service, ok := object.(*servingv1.Service)
		return ok && api.OptedIn(service.Spec.Template.Labels)
	})
}

// completePods offers the namespace's opted-in pods, as the first argument.
func (o *options) completePods(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return o.firstArgument(cmd, args, &corev1.PodList{}, func(object runtime.Object) bool {
		pod, ok := object.(*corev1.Pod)
		return ok && api.OptedIn(pod.Labels)
	})
}

// completeNodes offers nodes as the first argument, or as the value of a flag.
func (o *options) completeNodes(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return o.firstArgument(cmd, args, &corev1.NodeList{}, nil)
}

func (o *options) firstArgument(cmd *cobra.Command, args []string, list client.ObjectList, offered func(runtime.Object) bool) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	namespace, err := o.namespace()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return o.names(cmd.Context(), list, namespace, offered)
}

// names returns the names of the offered objects, in the namespace if they have one.
func (o *options) names(ctx context.Context, list client.ObjectList, namespace string, offered func(runtime.Object) bool) ([]cobra.Completion, cobra.ShellCompDirective) {
	kube, err := o.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	if err := kube.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []cobra.Completion
	err = meta.EachListItem(list, func(object runtime.Object) error {
		named, err := meta.Accessor(object)
		if err == nil && (offered == nil || offered(object)) {
			names = append(names, named.GetName())
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
