package kubectl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/kubectl/swap"
)

// rolloutTimeout is how long the activator's pods may take to be replaced, unless --timeout says otherwise.
const rolloutTimeout = 3 * time.Minute

func newActivator(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "activator",
		GroupID: groupInstall,
		Short:   "Swap Knative's activator for Libra's, and back",
		Args:    cobra.NoArgs,
		// Without this, a mistyped command would print the help and succeed.
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newActivatorInstall(o), newActivatorRemove(o))
	return cmd
}

func newActivatorInstall(o *options) *cobra.Command {
	var image, pod string
	var s swap.Swap
	cmd := &cobra.Command{
		Use:   "install --image REFERENCE",
		Short: "Have Knative's Deployment run Libra's activator",
		Long: `Have Knative's Deployment run Libra's activator.

The annotation ` + swap.StockImageAnnotation + ` records the stock image. If the new pods do not become ready,
the command restores the previous image. Run it again after an upgrade of Knative, which brings back the stock activator.`,
		Example: "  kubectl libra activator install --image registry.example.com/libra-activator@sha256:...",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.swapper(&s); err != nil {
				return err
			}
			reference, err := o.imageToInstall(cmd.Context(), s.Client, image, pod)
			if err != nil {
				return err
			}
			return s.Install(cmd.Context(), reference, nil)
		},
	}
	cmd.Flags().StringVar(&image, "image", "", "image of Libra's activator")
	cmd.Flags().StringVar(&pod, "image-of-pod", "", "pod whose container "+swap.LibraName+" has the image to install; the Job of libra-activator.yaml uses this")
	swapFlags(cmd, &s)
	return cmd
}

func newActivatorRemove(o *options) *cobra.Command {
	var s swap.Swap
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Have Knative's Deployment run the stock activator again",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.swapper(&s); err != nil {
				return err
			}
			return s.Remove(cmd.Context())
		},
	}
	swapFlags(cmd, &s)
	return cmd
}

func swapFlags(cmd *cobra.Command, s *swap.Swap) {
	cmd.Flags().DurationVar(&s.Timeout, "timeout", rolloutTimeout, "how long replacing the activator's pods may take")
	addClientDryRun(cmd, &s.DryRun)
}

// swapper sets all of a swap but its flags.
func (o *options) swapper(s *swap.Swap) (err error) {
	if err := hasTime(s.Timeout, rolloutTimeout); err != nil {
		return err
	}
	s.Out = o.Out
	s.Client, err = o.client()
	return err
}

// imageToInstall returns the image that is named, or that of the named pod.
func (o *options) imageToInstall(ctx context.Context, kube client.Client, image, pod string) (string, error) {
	if (image == "") == (pod == "") {
		return "", errors.New("want exactly one of --image, which names the image, and --image-of-pod, which names a pod that has it")
	}
	if image != "" {
		return image, nil
	}
	namespace, err := o.namespace()
	if err != nil {
		return "", err
	}
	var p corev1.Pod
	if err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: pod}, &p); err != nil {
		return "", fmt.Errorf("--image-of-pod: %w", err)
	}
	for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
		if c.Name == swap.LibraName {
			return c.Image, nil
		}
	}
	return "", fmt.Errorf("--image-of-pod: pod %s/%s has no container %s", namespace, pod, swap.LibraName)
}
