package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func newInstall() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Bring Libra's parts on the box, and neither functions nor load",
		Long: `install makes sure that the stock activator is in its place and applies Libra's
other parts, for measurements that bring functions of their own.

It is to be run from the root of the repository, and may be run again at any time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return installOnBox(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the box, as \"box kubeconfig\" prints it")
	f.StringVar(&o.kubectlPath, "kubectl", "", "kubectl to use (default: the box's)")
	f.StringVar(&o.imagesFile, "images", "", "JSON file from image name to reference, as \"box load\" writes it")
	f.StringVar(&o.outDir, "out", "out/install", "folder for what is applied")
	return cmd
}

func installOnBox(ctx context.Context, o options, out io.Writer) error {
	d := newDemo(o, out)
	if d.kubeconfig == "" || d.imagesFile == "" {
		return errors.New("--kubeconfig must be that of the box (`box kubeconfig` prints it), and --images the file that `box load` wrote")
	}
	env := without(os.Environ(), misleads)
	var err error
	if d.kubectlPath, err = d.tool(d.kubectlPath, "kubectl", "kubelite", true); err != nil {
		return err
	}
	d.kubectl = kubectl{path: d.kubectlPath, env: env, flags: []string{"--kubeconfig=" + d.kubeconfig}}
	if err := d.checkBox(ctx); err != nil {
		return err
	}
	if d.images, err = readImages(d.imagesFile); err != nil {
		return err
	}
	d.say("stock activator: making sure that it is there")
	if err := d.restoreActivator(ctx); err != nil {
		return err
	}
	d.say("Libra's parts: applying %s", libraManifests)
	return d.installLibra(ctx)
}
