package kubectl

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fieldOwner is the field manager of the changes that this plugin makes. It does not begin with kubectl: Flux undoes what
// such managers add to objects that it applies, so also a mode set in an emergency.
const fieldOwner = "libra-kubectl"

// mergePatch returns a merge patch of plain maps, which can always be written as JSON.
func mergePatch(fields map[string]any) client.Patch {
	data, err := json.Marshal(fields)
	utilruntime.Must(err)
	return client.RawPatch(types.MergePatchType, data)
}

// changeFlags are the flags of commands that change something and wait.
type changeFlags struct {
	output
	dryRun
	timeout time.Duration
}

func (f *changeFlags) addFlags(cmd *cobra.Command, timeout time.Duration, until string) {
	f.output.addFlag(cmd)
	f.dryRun.addFlag(cmd)
	cmd.Flags().DurationVar(&f.timeout, "timeout", timeout, "how long to wait until "+until+"; 0s: do not wait")
}

func (f *changeFlags) check() error {
	if f.timeout < 0 {
		return fmt.Errorf("--timeout is %v, want 0s, which does not wait, or more", f.timeout)
	}
	return errors.Join(f.output.check(), f.dryRun.check())
}

const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

// dryRun says whether changes are made, sent as a dry run, or only told.
type dryRun struct{ strategy string }

func (d *dryRun) addFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.strategy, "dry-run", dryRunNone, "none, client (send nothing) or server (the API server says what it would do, and changes nothing)")
	complete(cmd, "dry-run", cobra.FixedCompletions([]string{dryRunNone, dryRunClient, dryRunServer}, cobra.ShellCompDirectiveNoFileComp))
}

func (d *dryRun) check() error {
	switch d.strategy {
	case dryRunNone, dryRunClient, dryRunServer:
		return nil
	}
	return fmt.Errorf("--dry-run is %q, want %s, %s or %s", d.strategy, dryRunNone, dryRunClient, dryRunServer)
}

// changes reports whether changes are kept.
func (d *dryRun) changes() bool { return d.strategy == dryRunNone }

// sends reports whether changes go to the API server at all.
func (d *dryRun) sends() bool { return d.strategy != dryRunClient }

// client returns kube or, in a server dry run, a client that keeps no change.
func (d *dryRun) client(kube client.Client) client.Client {
	if d.strategy == dryRunServer {
		return client.NewDryRunClient(kube)
	}
	return kube
}

// suffix marks the result of a dry run.
func (d *dryRun) suffix() string {
	if d.changes() {
		return ""
	}
	return fmt.Sprintf(" (%s dry run)", d.strategy)
}

// addClientDryRun adds the flag to a command that has no dry run on the API server.
func addClientDryRun(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolFunc("dry-run", "none or client (print what would be done, and do nothing); client without a value", func(strategy string) error {
		switch strategy {
		case dryRunClient, "true":
			*to = true
		case dryRunNone, "false":
			*to = false
		default:
			return fmt.Errorf("want %s or %s", dryRunNone, dryRunClient)
		}
		return nil
	})
	complete(cmd, "dry-run", cobra.FixedCompletions([]string{dryRunNone, dryRunClient}, cobra.ShellCompDirectiveNoFileComp))
}
