package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"libra.dev/libra/pkg/api"
)

func newInstall() *cobra.Command {
	var o options
	var libraActivator, functions bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install Libra's parts on the box, without a load",
		Long: `install applies Libra's parts, in the mode full, for other measurements. It leaves the stock
activator in place, or puts it back, unless --activator asks for Libra's.

Run it from the root of the repository. You can run it again at any time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return installOnBox(cmd.Context(), o, libraActivator, functions, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the box, as \"box kubeconfig\" prints it")
	f.StringVar(&o.imagesFile, "images", "", "JSON file that maps image names to references, as \"box load\" writes it")
	f.StringVar(&o.outDir, "out", "out/install", "folder for what is applied")
	f.BoolVar(&libraActivator, "activator", false, "replace the stock activator with Libra's")
	f.BoolVar(&functions, "functions", false, "also apply the functions of end-to-end tests and chaos, in the namespace default, in place of a demo's; with --activator, have Libra learn them")
	f.BoolVar(&o.redisAuth, "redis-auth", false, "give Redis TLS and a user for each part ("+redisAuthManifests+"), with certificates and passwords generated here; without this flag, those of an earlier install are removed")
	return cmd
}

func installOnBox(ctx context.Context, o options, libraActivator, functions bool, out io.Writer) error {
	d := newDemo(o, out)
	d.namespace, d.gateway = fourNamespace, boxGateway
	if err := d.resolve(); err != nil {
		return err
	}
	if err := d.mayChange(ctx, nil, ""); err != nil {
		return err
	}
	applied := libraManifests
	if d.redisAuth {
		applied += " with " + redisAuthManifests
	}
	d.say("installing Libra: applying %s", applied)
	if err := d.installLibra(ctx); err != nil {
		return err
	}
	// The benches and chaos watch limits that move between functions.
	if err := d.setSource(ctx, api.SourceOwners, d.namespace); err != nil {
		return err
	}
	var err error
	if libraActivator {
		d.say("replacing the stock activator with Libra's")
		err = d.installActivator(ctx)
	} else {
		d.say("making sure that the stock activator is there")
		// bench-activator runs Libra's activator beside it, with the
		// same account.
		err = errors.Join(d.kubectl.apply(ctx, activatorManifests), d.restoreActivator(ctx))
	}
	if err == nil {
		// Measurements are of Libra in action.
		err = d.setMode(ctx, api.ModeFull)
	}
	if err != nil || !functions {
		return err
	}
	d.say("removing what an evaluation or a demo left")
	if err := d.clear(ctx); err != nil {
		return err
	}
	if err := d.keepTogether(ctx); err != nil {
		return err
	}
	d.say("installing the functions %s", strings.Join(d.services.all, ", "))
	if err := d.installFunctions(ctx); err != nil {
		return err
	}
	if !libraActivator {
		return nil
	}
	return d.learnFour(ctx)
}
