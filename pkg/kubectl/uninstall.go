package kubectl

import (
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/pkg/kubectl/uninstall"
)

// uninstallTimeout is how long the removal waits for each thing, unless --timeout says otherwise.
const uninstallTimeout = 5 * time.Minute

func newUninstall(o *options) *cobra.Command {
	var u uninstall.Uninstall
	cmd := &cobra.Command{
		Use:     "uninstall",
		GroupID: groupInstall,
		Short:   "Put everything back that Libra has changed, and remove it",
		Long: `Put everything back that Libra has changed, and remove it.

Libra stops to lend, every pod gets back what it is owed, Knative's own activator comes back, and then Libra's
objects go. Placement policies stay, and so do labels on namespaces and nodes, unless they are named. What
is left is listed at the end. After a failure run it again: it goes on where it ended.`,
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
	cmd.Flags().DurationVar(&u.Timeout, "timeout", uninstallTimeout, "how long each thing may take that is waited for")
	cmd.Flags().BoolVar(&u.DryRun, "dry-run", false, "say what would be done, and do nothing")
	cmd.Flags().BoolVar(&u.DeletePolicies, "delete-policies", false, "also delete the placement policies and other objects of Libra's kinds that users wrote")
	cmd.Flags().BoolVar(&u.Labels, "labels", false, "also take Libra's labels from namespaces and nodes")
	cmd.Flags().BoolVar(&u.WithJob, "with-job", false, "at the end also remove the namespace "+uninstall.Job+", in which libra-uninstall.yaml has a Job do this")
	return cmd
}
