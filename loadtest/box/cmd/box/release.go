package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/box/cluster"
	"libra.dev/libra/loadtest/box/image"
	"libra.dev/libra/loadtest/box/layout"
	"libra.dev/libra/loadtest/box/stack"
)

func newRelease() *cobra.Command {
	var (
		r          stack.Release
		archive    string
		push, lock bool
	)
	cmd := &cobra.Command{
		Use:   "release",
		Short: "Build the images of a release from the repository, as any user",
		Long: `release builds an image of each of Libra's parts, for all the architectures, in an
OCI image layout: images in the folder --out. Beside the layout it writes images.json, with
the reference of each image by digest, and components.json, with the contents of each image.

It needs neither root nor Docker, only Go and some Debian packages, which it names
if they are missing. The same sources give the same digests.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := repository()
			if err != nil {
				return err
			}
			l, err := layout.Default()
			if err != nil {
				return err
			}
			// The box's own folders have layers of whatever Debian had at its build.
			l.Cache = filepath.Join(l.Cache, "release")
			log, done := progress(cmd)
			unlock, err := cluster.LockRelease(cmd.Context(), l, log)
			if err != nil {
				return err
			}
			defer unlock()
			if lock {
				if err := stack.LockDebian(cmd.Context(), l.Cache, root, log); err != nil {
					return err
				}
				done("predictor/debian.lock has the packages that Debian has now")
				return nil
			}
			if err := cluster.PreflightRelease(l); err != nil {
				return err
			}
			if err := r.Build(cmd.Context(), l, root, log); err != nil {
				return err
			}
			if archive != "" {
				if err := image.ArchiveLayout(r.Layout(), archive); err != nil {
					return err
				}
				log("%s: written", archive)
			}
			if push {
				if err := r.Push(cmd.Context(), log); err != nil {
					return err
				}
			}
			done("the images of %s are in %s, their references in %s", r.Version, r.Layout(), filepath.Join(r.Out, "images.json"))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Registry, "registry", "", "where the images will be, as registry/path; the name of each image follows it")
	f.StringVar(&r.Version, "version", "", "version of the release, and tag of its images")
	f.StringSliceVar(&r.Architectures, "arch", stack.Architectures(), "architectures to build the images for, any of "+strings.Join(stack.Architectures(), ", "))
	f.StringVar(&r.Out, "out", "dist", "folder to write to")
	f.StringVar(&archive, "archive", "", "also write all images to this tar file, for \"kind load image-archive\"")
	f.BoolVar(&push, "push", false, "also push the images to the registry, with the credentials of your own Docker configuration")
	f.BoolVar(&lock, "lock", false, "only rewrite predictor/debian.lock, which pins the Debian packages under the predictor")
	return cmd
}
