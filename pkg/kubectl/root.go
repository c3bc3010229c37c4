// Package kubectl holds the commands of kubectl's plugin for Libra.
package kubectl

import (
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/kubectl/check"
)

// requestTimeout is how long one request to the API server may take, unless --request-timeout says otherwise.
const requestTimeout = 30 * time.Second

// Groups of commands, as --help lists them.
const (
	groupSee     = "see"
	groupChange  = "change"
	groupInstall = "install"
)

// options are shared by all commands: which cluster to use, and where to write.
type options struct {
	genericiooptions.IOStreams
	flags *genericclioptions.ConfigFlags
}

func newOptions(streams genericiooptions.IOStreams) *options {
	o := &options{IOStreams: streams, flags: genericclioptions.NewConfigFlags(true)}
	warnings := rest.NewWarningWriter(streams.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	o.flags.WithWrapConfigFn(func(c *rest.Config) *rest.Config {
		// If this were the flag's default, client-go would take it for a configuration, and not
		// use the pod's service account.
		if c.Timeout == 0 {
			c.Timeout = requestTimeout
		}
		// A limiter of the client's would fail requests of its own accord when a command is short of time. Few requests run
		// at a time, and the API server has its own priority and fairness.
		if c.QPS == 0 {
			c.QPS = -1
		}
		c.WarningHandler = warnings
		return c
	})
	return o
}

// NewRoot returns the command `kubectl libra`.
func NewRoot(streams genericiooptions.IOStreams) *cobra.Command {
	log.SetLogger(logr.Discard()) // commands say what the user needs to know
	o := newOptions(streams)
	root := &cobra.Command{
		Use:          "kubectl-libra",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl libra"},
		Short:        "See what Libra does, change it, and remove it",
		SilenceUsage: true,
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	o.flags.AddFlags(root.PersistentFlags())
	root.AddGroup(
		&cobra.Group{ID: groupSee, Title: "See what Libra does:"},
		&cobra.Group{ID: groupChange, Title: "Change what Libra does:"},
		&cobra.Group{ID: groupInstall, Title: "Install and remove Libra:"},
	)
	root.AddCommand(newVersion(o))
	root.AddCommand(newCheck(o))
	root.AddCommand(newActivator(o), newUninstall(o))
	root.AddCommand(newStatus(o), newSavings(o), newTop(o), newExplain(o), newPool(o), newMode(o), newRestore(o))
	o.completeNamespaces(root)
	return root
}

var scheme = check.NewScheme()

// client returns a client of the cluster that the flags, the kubeconfig or the pod's service account name.
func (o *options) client() (client.Client, error) {
	config, err := o.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("loading the client configuration: %w", err)
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// namespace returns the namespace that the flags or the kubeconfig's context name.
func (o *options) namespace() (string, error) {
	ns, _, err := o.flags.ToRawKubeConfigLoader().Namespace()
	return ns, err
}
