// Command tapp converts tAPP scripts to placement policies.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/activator-plugin/placement/tapp/script"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// maxScript is the longest script that is read, in bytes.
const maxScript = 1 << 20

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:          "tapp",
		Short:        "Convert tAPP scripts to placement policies",
		SilenceUsage: true,
	}
	root.AddCommand(newConvert())
	return root
}

func newConvert() *cobra.Command {
	var (
		o       script.Options
		cluster bool
	)
	cmd := &cobra.Command{
		Use:   "convert [FILE]",
		Short: "Write a PlacementPolicy for each tag of a tAPP script",
		Long: `Write a PlacementPolicy for each tag of a tAPP script, read from FILE or from the standard
input.

A script names workers, sets of workers and controllers by labels. They map to nodes and zones:

  wrk: DB_worker1          nodes with the label libra.dev/worker=DB_worker1, or with
                           --node-names the node of that name
  set: local               nodes with the label libra.dev/worker-set=local
  set:                     all nodes
  controller: DBZoneCtl    activators in the zone that --zone sets, or in the zone of that name

The policy of a tag with capitals or underscores has a different name, because Kubernetes allows
neither in names.
Functions name their policy with the label libra.dev/placement.`,
		Example: `  tapp convert script.yaml --zone DBZoneCtl=eu-west-1a | kubectl apply -n shop -f -
  tapp convert script.yaml --cluster --worker-label kubernetes.io/hostname`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := check(o, cluster); err != nil {
				return err
			}
			text, name, err := read(cmd.InOrStdin(), args)
			if err != nil {
				return err
			}
			tags, err := script.Convert(text, o)
			if err != nil {
				return fmt.Errorf("%s:\n%w", name, err)
			}
			return write(cmd.OutOrStdout(), tags, cluster)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of the policies (default: none, so that kubectl apply decides)")
	flags.BoolVar(&cluster, "cluster", false, "write ClusterPlacementPolicies, for all namespaces (default false)")
	flags.StringVar(&o.WorkerLabel, "worker-label", "libra.dev/worker", "node label whose value is the label of a wrk")
	flags.StringVar(&o.SetLabel, "set-label", "libra.dev/worker-set", "node label whose value is the label of a set")
	flags.BoolVar(&o.NodeNames, "node-names", false, "take the label of a wrk as a node name (default false)")
	flags.StringToStringVar(&o.Zones, "zone", nil, "zone of a controller, as CONTROLLER=ZONE; may be repeated (default: the controller's label)")
	return cmd
}

func check(o script.Options, cluster bool) error {
	if cluster && o.Namespace != "" {
		return fmt.Errorf("--namespace is %q, want none with --cluster: a ClusterPlacementPolicy has no namespace", o.Namespace)
	}
	if o.Namespace != "" && len(validation.IsDNS1123Label(o.Namespace)) > 0 {
		return fmt.Errorf("--namespace is %q, want the name of a namespace, such as shop", o.Namespace)
	}
	for flag, key := range map[string]string{"--worker-label": o.WorkerLabel, "--set-label": o.SetLabel} {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return fmt.Errorf("%s is %q, want the key of a label, such as kubernetes.io/hostname: %s", flag, key, strings.Join(problems, "; "))
		}
	}
	return nil
}

func read(stdin io.Reader, args []string) (text []byte, name string, err error) {
	name = "the standard input"
	if len(args) > 0 && args[0] != "-" {
		name = args[0]
		file, err := os.Open(name)
		if err != nil {
			return nil, name, err
		}
		defer file.Close()
		stdin = file
	}
	text, err = io.ReadAll(io.LimitReader(stdin, maxScript+1))
	switch {
	case err != nil:
		return nil, name, fmt.Errorf("reading %s: %w", name, err)
	case len(text) > maxScript:
		return nil, name, fmt.Errorf("%s is too long, want at most %d bytes", name, maxScript)
	}
	return text, name, nil
}

func write(out io.Writer, tags []script.Tag, cluster bool) error {
	for i, t := range tags {
		if cluster {
			t.Policy.Kind = "ClusterPlacementPolicy"
		}
		text, err := manifest(&t.Policy)
		if err != nil {
			return fmt.Errorf("tag %s: %w", t.Name, err)
		}
		if i > 0 {
			text = "---\n" + text
		}
		if t.Name != t.Policy.Name {
			text = strings.Replace(text, "apiVersion:", fmt.Sprintf("# Tag %s: functions name this policy with the label %s: %s.\napiVersion:", t.Name, api.PlacementLabel, t.Policy.Name), 1)
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
	}
	return nil
}

// manifest returns a policy as somebody would write it.
func manifest(p *v1alpha1.PlacementPolicy) (string, error) {
	metadata := map[string]any{"name": p.Name}
	if p.Namespace != "" {
		metadata["namespace"] = p.Namespace
	}
	text, err := yaml.Marshal(map[string]any{"apiVersion": p.APIVersion, "kind": p.Kind, "metadata": metadata, "spec": p.Spec})
	return string(text), err
}
