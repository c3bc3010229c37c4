package kubectl

import (
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/pkg/kubectl/uninstall"
)

// uninstallTimeout is how long the removal waits for each thing, unless --timeout says otherwise. Knative gives an activator ten
// minutes to finish its requests.
const uninstallTimeout = 11 * time.Minute

func newUninstall(o *options) *cobra.Command {
	var u uninstall.Uninstall
	cmd := &cobra.Command{
		Use:     "uninstall",
		GroupID: groupInstall,
		Short:   "Put back everything that Libra changed, and remove Libra",
		Long: `Put back everything that Libra changed, and remove Libra.

Libra stops lending, every pod gets back what it is owed, Knative's own activator comes back, and then Libra's
objects are removed. Placement policies, and labels on namespaces and nodes, stay unless flags say otherwise. The
command ends with a list of what is left. After a failure, run it again: it continues where it stopped.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := hasTime(u.Timeout, uninstallTimeout); err != nil {
				return err
			}
			if u.Client, err = o.client(); err != nil {
				return err
			}
			u.Out = o.Out
			return u.Run(cmd.Context())
		},
	}
	cmd.Flags().DurationVar(&u.Timeout, "timeout", uninstallTimeout, "how long each wait may take")
	addClientDryRun(cmd, &u.DryRun)
	cmd.Flags().BoolVar(&u.DeletePolicies, "delete-policies", false, "also delete the placement policies and other objects of Libra's kinds that users wrote")
	cmd.Flags().BoolVar(&u.Labels, "labels", false, "also remove Libra's labels from namespaces and nodes")
	cmd.Flags().BoolVar(&u.WithJob, "with-job", false, "at the end, also remove the namespace "+uninstall.Job+", in which the Job of libra-uninstall.yaml runs")
	return cmd
}
