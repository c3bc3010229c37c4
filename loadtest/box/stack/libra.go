package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/image"
	"libra.dev/libra/loadtest/box/layout"
)

const (
	functionsDir   = "loadtest/functions/cmd"
	predictorDir   = "predictor"
	predictorName  = "libra_predictor"
	predictorImage = "libra-predictor"
)

// parts are Libra's Go programs: the image's name, and the package in the
// module at the root of the repository.
var parts = []build.Binary{
	{Name: "libra-activator", Package: "activator-plugin/cmd/activator"},
	{Name: "libra-resizer", Package: "resizer/cmd/controller"},
	{Name: "libra-agent", Package: "resizer/cmd/agent"},
	{Name: "kubectl-libra", Package: "pkg/kubectl/cmd/kubectl-libra"},
}

// samples are the load tests' functions that a release's samples run.
var samples = []string{"compression", "load", "store", "uploader"}

// Node is where Load puts images.
type Node interface {
	// Images returns the names, with tags, of the images on the node.
	Images(ctx context.Context) ([]string, error)
	// Import puts the images in a tar on the node.
	Import(ctx context.Context, tar string) error
}

// own is an image that is not part of the stack: Libra's own, or an extra's.
type own struct {
	name  string
	image image.Image
}

// Load builds Libra's own images and those of the named extras from the repository at root. It
// imports those that the node lacks, and writes the reference of each image, by its name, to the
// JSON file out. A tag is made from the image's content, so that a Deployment changes exactly
// when its program does. Upstream's objects of an extra go beside out.
func Load(ctx context.Context, l layout.Layout, root string, node Node, with []string, out string, log Logf) error {
	b := &builder{layout: l, root: root, log: log}
	images, err := b.loaded(ctx, with, out)
	if err != nil {
		return err
	}
	have, err := node.Images(ctx)
	if err != nil {
		return fmt.Errorf("list the node's images: %w", err)
	}
	references := map[string]string{"redis": RedisImage}
	for _, o := range images {
		id, err := o.image.ContentID()
		if err != nil {
			return err
		}
		reference := registry + o.name + ":" + id
		references[o.name] = reference
		// A node that starts later imports the image from this folder.
		tar := filepath.Join(l.Images(), o.name+".tar")
		if err := o.image.WriteTar(tar, reference); err != nil {
			return err
		}
		if slices.Contains(have, reference) {
			continue
		}
		if err := node.Import(ctx, tar); err != nil {
			return fmt.Errorf("import %s: %w", reference, err)
		}
		log("%s: loaded", reference)
	}
	return writeJSON(out, references)
}

// Architectures returns the architectures that Push can make images for.
func Architectures() []string { return slices.Sorted(maps.Keys(wheelMachines)) }

// Push builds the same images for each of the architectures and pushes them to a registry's
// repository, for a cluster that is not the box. For several architectures, each image is an
// index. The references are by digest, because a tag may come to mean another image.
func Push(ctx context.Context, l layout.Layout, root, repo string, archs, with []string, out string, log Logf) error {
	names, indexes, err := forEach(archs, log, func(arch string) ([]own, error) {
		b := &builder{layout: l.For(arch), root: root, log: log, arch: arch}
		return b.loaded(ctx, with, out)
	})
	if err != nil {
		return err
	}
	references := map[string]string{}
	for _, name := range names {
		id, err := indexes[name].ContentID()
		if err != nil {
			return err
		}
		as := strings.TrimSuffix(repo, "/") + "/" + name + ":" + id
		if references[name], err = indexes[name].Push(ctx, as); err != nil {
			return err
		}
		log("%s: pushed", as)
	}
	return writeJSON(out, references)
}

// forEach builds images for each of the architectures, and groups them by name.
func forEach(archs []string, log Logf, images func(arch string) ([]own, error)) (names []string, indexes map[string]image.Index, err error) {
	archs = slices.Compact(slices.Sorted(slices.Values(archs)))
	if len(archs) == 0 {
		return nil, nil, fmt.Errorf("no architecture to make images for; want some of %s", strings.Join(Architectures(), ", "))
	}
	for _, arch := range archs {
		if !slices.Contains(Architectures(), arch) {
			return nil, nil, fmt.Errorf("cannot make images for the architecture %q; want some of %s", arch, strings.Join(Architectures(), ", "))
		}
	}
	indexes = map[string]image.Index{}
	for _, arch := range archs {
		log("making the images for %s", arch)
		all, err := images(arch)
		if err != nil {
			return nil, nil, fmt.Errorf("images for %s: %w", arch, err)
		}
		names = names[:0]
		for _, o := range all {
			names = append(names, o.name)
			indexes[o.name] = append(indexes[o.name], o.image)
		}
	}
	return names, indexes, nil
}

// own builds Libra's images and those of the load tests' functions.
func (b *builder) own(ctx context.Context) ([]own, error) {
	functions, err := functionBinaries(b.root)
	if err != nil {
		return nil, err
	}
	images, err := b.programs(ctx, "", build.Options{}, slices.Concat(parts, functions)...)
	if err != nil {
		return nil, err
	}
	img, err := b.predictorOf(ctx)
	return append(images, img), err
}

// programs builds binaries of the module in the folder dir of the repository, and an image for each.
func (b *builder) programs(ctx context.Context, dir string, o build.Options, binaries ...build.Binary) ([]own, error) {
	if err := b.compiler().Local(ctx, filepath.Join(b.root, dir), o, binaries...); err != nil {
		return nil, err
	}
	var images []own
	for _, bin := range binaries {
		img, err := b.program(bin.Name)
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	return images, nil
}

// predictorOf makes the predictor's image.
func (b *builder) predictorOf(ctx context.Context) (own, error) {
	if err := b.python(ctx); err != nil {
		return own{}, err
	}
	img, err := b.predictor(filepath.Join(b.root, predictorDir, predictorName))
	if err != nil {
		return own{}, fmt.Errorf("image %s: %w", predictorImage, err)
	}
	return own{predictorImage, img}, nil
}

// program makes the image of one static binary, by the binary's name.
func (b *builder) program(name string) (own, error) {
	layers := b.dir("layers")
	if err := os.MkdirAll(layers, 0o755); err != nil {
		return own{}, err
	}
	to := "/usr/local/bin/" + name
	layer, err := image.WriteLayer(filepath.Join(layers, name+".tar"), image.Copy{From: b.layout.Bin(name), To: to})
	if err != nil {
		return own{}, err
	}
	img, err := image.New(image.Config{Architecture: b.arch, User: image.NonRoot, Entrypoint: []string{to}}, layer)
	return own{name, img}, err
}

// functionBinaries returns the functions of the load tests: each folder is one.
func functionBinaries(root string) ([]build.Binary, error) {
	functions, err := os.ReadDir(filepath.Join(root, functionsDir))
	if err != nil {
		return nil, fmt.Errorf("list the load tests' functions: %w", err)
	}
	var binaries []build.Binary
	for _, f := range functions {
		if f.IsDir() {
			binaries = append(binaries, build.Binary{Name: functionImage(f.Name()), Package: functionsDir + "/" + f.Name()})
		}
	}
	return binaries, nil
}

// sampleBinaries returns the binaries of samples.
func sampleBinaries(root string) ([]build.Binary, error) {
	functions, err := functionBinaries(root)
	if err != nil {
		return nil, err
	}
	var found []build.Binary
	for _, s := range samples {
		at := slices.IndexFunc(functions, func(b build.Binary) bool { return b.Name == functionImage(s) })
		if at < 0 {
			return nil, fmt.Errorf("manifests/samples runs %s, but there is no folder %s/%s", functionImage(s), functionsDir, s)
		}
		found = append(found, functions[at])
	}
	return found, nil
}

func functionImage(function string) string { return "libra-fn-" + function }

// predictor adds the predictor's source to the layers that python made.
func (b *builder) predictor(source string) (image.Image, error) {
	var layers []image.Layer
	for _, path := range []string{b.pythonLayer(), b.sitePackagesLayer()} {
		l, err := image.OpenLayer(path)
		if err != nil {
			return image.Image{}, err
		}
		layers = append(layers, l)
	}
	app, err := image.WriteLayer(b.dir("layers/"+predictorImage+".tar"),
		image.Copy{From: source, To: "/app/" + predictorName, Skip: []string{"__pycache__"}})
	if err != nil {
		return image.Image{}, err
	}
	return image.New(image.Config{
		Architecture: b.arch,
		User:         image.NonRoot,
		Entrypoint:   []string{python, "-m", predictorName},
		Env:          []string{"PYTHONPATH=/app", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8", "HOME=/tmp"},
		WorkingDir:   "/app",
	}, append(layers, app)...)
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
