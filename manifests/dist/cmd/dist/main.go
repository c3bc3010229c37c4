// Command dist writes the files of a release beside its images.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"libra.dev/libra/manifests/dist"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	var r dist.Release
	var images, components string
	root := &cobra.Command{
		Use:   "dist --version VERSION --downloads URL",
		Short: "Write the files of a release beside its images",
		Long: `Write the files of a release beside its images: the objects that users apply, with each image by its
digest, a Helm chart of the same objects, the contents of the images as CycloneDX, the archives of the
kubectl plugin with a manifest for krew, and SHA256SUMS over all files in the folder.

It reads the images.json and the components.json that "box release" writes. Run it from the root of the repository.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if r.Images, err = dist.ReadImages(images); err != nil {
				return err
			}
			if r.Components, err = dist.ReadComponents(components); err != nil {
				return err
			}
			return r.Write(cmd.Context(), func(format string, args ...any) {
				fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
			})
		},
	}
	f := root.Flags()
	f.StringVar(&r.Version, "version", "", "version of the release, such as 0.1.0")
	f.StringVar(&images, "images", "dist/images.json", "JSON object that maps each image name to a reference by digest")
	f.StringVar(&components, "components", "dist/components.json", "JSON file of what is in each image")
	f.StringVar(&r.Downloads, "downloads", "", "URL of the folder where the plugin's archives will be, for krew")
	f.StringVar(&r.Out, "out", "dist", "folder to write to")
	f.StringVar(&r.Root, "root", ".", "root of the repository")
	for _, required := range []string{"version", "downloads"} {
		if err := root.MarkFlagRequired(required); err != nil {
			panic(err) // there is no such flag
		}
	}
	return root
}
