//go:build install

// Package install does with a release what a stranger would: it installs the release from a registry, by the commands of
// docs/install.md, on a cluster with stock Knative, and removes it again.
package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var (
	kubeconfig    = flag.String("kubeconfig", "", "kubeconfig of the box")
	boxPath       = flag.String("box", "", "the box command")
	kubelitePath  = flag.String("kubelite", "", "the box's kubelite, beside whose folder are the stack's images")
	functionsPath = flag.String("functions", "", "images.json of the box, with the load test's functions")
	outPath       = flag.String("out", "", "folder for the release and results.json")
)

const (
	root    = "../.."
	page    = root + "/docs/install.md"
	version = "0.0.0-test"

	releaseTimeout = 20 * time.Minute
	commandTimeout = 10 * time.Minute

	namespace   = "shop"
	compression = "compression" // wants more CPU than its limit
)

// user types commands in the folder of a release.
type user struct {
	*testing.T
	config *rest.Config
	kube   client.Client
	dist   string
	env    []string
	took   map[string]float64
}

// The cluster has no Prometheus. With -without kserve it has no KServe either, and with -ingress kourier it has Kourier
// instead of Istio.
func TestAStrangerInstallsSeesAndRemoves(t *testing.T) {
	began := time.Now()
	u := newUser(t)
	u.lacks()
	u.step("release", u.released)
	before := u.fields()

	u.step("install", u.typesInstall)
	u.step("samples", func() { u.types("samples") })
	load := u.send(function{name: compression, step: 100_000, in: samples}, function{name: "uploader", step: 100_000, in: samples})
	u.step("status has a number", func() { u.awaitStatus() })
	u.step("full and explain", func() {
		u.types("samples in full")
		u.until(2*time.Minute, "a request in full", func() error {
			explained, err := u.try("kubectl libra explain " + compression + " -n " + samples + " --request latest")
			if err != nil || !regexp.MustCompile(`(?m)^mode +full `).MatchString(explained) {
				return fmt.Errorf("%v: %s", err, explained)
			}
			return nil
		})
		u.sh("kubectl libra check --all-namespaces")
	})

	u.step("lend", u.awaitBorrowed)

	u.step("remove", func() { u.types("remove") })
	answered, failed := load.stop()
	failed += u.failedOfJob()
	u.awaitRemoved()
	u.step("samples removed", func() { u.types("samples removed") })

	left, files := u.changed(before), u.files()
	u.record(map[string]any{
		"variant": variant(), "minutes": time.Since(began).Minutes(), "seconds": u.took, "requests": answered, "failed_requests": failed,
		"objects_left": left, "files_left": files,
	})
	if len(left) > 0 || len(files) > 0 {
		t.Errorf("left are of objects:\n%s\nand the files %q", strings.Join(left, "\n"), files)
	}
	if failed > 0 || answered == 0 {
		t.Errorf("%d requests were answered and %d failed", answered, failed)
	}
}

func newUser(t *testing.T) *user {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		t.Fatal("-kubeconfig: ", err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), servingv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	kube, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(*kubelitePath, filepath.Join(bin, "kubectl")); err != nil { // its name selects the command
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(bin, "kubectl-libra"), "./pkg/kubectl/cmd/kubectl-libra")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the plugin: %v\n%s", err, out)
	}
	return &user{
		T: t, config: config, kube: kube, dist: filepath.Join(*outPath, "dist"), took: map[string]float64{},
		env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+*kubeconfig),
	}
}

func (u *user) step(what string, do func()) {
	u.Helper()
	began := time.Now()
	do()
	u.took[what] = time.Since(began).Seconds()
	u.Logf("%s: %.0f s", what, u.took[what])
}

// release makes the release of a tree of the repository with that tree's own programs, and its images at a registry.
func (u *user) release(at, tree, version string) {
	u.Helper()
	u.run(tree, "make", "bin/box", "bin/dist")
	u.run(tree, "bin/box", "release", "--registry", at, "--version", version, "--arch", "amd64", "--out", u.dist, "--push")
	path := filepath.Join(u.dist, "images.json")
	text, err := os.ReadFile(path)
	if err != nil {
		u.Fatal(err)
	}
	var images map[string]string
	if err := json.Unmarshal(text, &images); err != nil {
		u.Fatalf("%s: %v", path, err)
	}
	// The box reaches no registry but this one.
	images["redis"] = pushTar(u.T, filepath.Join(filepath.Dir(filepath.Dir(*kubelitePath)), "images", "redis.tar"), at+"/redis")
	if text, err = json.Marshal(images); err != nil {
		u.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		u.Fatal(err)
	}
	u.run(tree, "bin/dist", "--version", version, "--downloads", "https://libra.test/"+version, "--out", u.dist,
		"--images", path, "--components", filepath.Join(u.dist, "components.json"))
}

// run runs a program of a tree, or one of the machine, in that tree.
func (u *user) run(tree, program string, args ...string) {
	u.Helper()
	ctx, cancel := context.WithTimeout(u.Context(), releaseTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = tree
	if out, err := cmd.CombinedOutput(); err != nil {
		u.Fatalf("%s %s in %s: %v\n%s", program, strings.Join(args, " "), tree, err, out)
	}
}

// types types the commands that docs/install.md has after a mark.
func (u *user) types(mark string) {
	u.Helper()
	for _, command := range u.marked(mark) {
		u.sh(command)
	}
}

// marked returns the commands that docs/install.md has after a mark.
func (u *user) marked(mark string) (commands []string) {
	u.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		u.Fatal(err)
	}
	marked := regexp.MustCompile("(?s)<!-- " + mark + ": make [a-z-]+ types these -->\n```sh\n(.*?)```\n").FindSubmatch(text)
	if marked == nil {
		u.Fatalf("%s has no commands marked %q", page, mark)
	}
	for command := range strings.Lines(string(marked[1])) {
		commands = append(commands, strings.TrimSpace(command))
	}
	return commands
}

// sh runs a command as a shell does, and returns what it prints.
func (u *user) sh(command string) string {
	u.Helper()
	out, err := u.try(command)
	u.Logf("$ %s\n%s", command, out)
	if err != nil {
		u.Fatalf("%s: %v", command, err)
	}
	return out
}

func (u *user) try(command string) (string, error) {
	ctx, cancel := context.WithTimeout(u.Context(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-ec", command)
	cmd.Dir, cmd.Env = u.dist, u.env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// until repeats a check every second, until it returns no error.
func (u *user) until(limit time.Duration, what string, check func() error) {
	u.Helper()
	for deadline := time.Now().Add(limit); ; {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			u.Fatalf("%s: not after %v: %v", what, limit, err)
		}
		<-time.After(time.Second)
	}
}

func (u *user) awaitRemoved() {
	u.Helper()
	u.until(2*time.Minute, "end of the removal's own namespace", func() error {
		var ns corev1.Namespace
		if err := u.kube.Get(u.Context(), client.ObjectKey{Name: "libra-uninstall"}, &ns); client.IgnoreNotFound(err) != nil {
			return err
		} else if err == nil {
			return fmt.Errorf("it is %s", ns.Status.Phase)
		}
		return nil
	})
}

// files returns Libra's files on the node, which is this machine. Their folder is a mount point that goes when the node
// boots.
func (u *user) files() []string {
	found, err := filepath.Glob("/run/libra-agent/*")
	if err != nil {
		u.Fatal(err)
	}
	return append([]string{}, found...) // so that none is an empty list in results.json
}

// write writes results into the folder of the test.
func (u *user) write(results any) {
	u.Helper()
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		u.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*outPath, "results.json"), append(data, '\n'), 0o644); err != nil {
		u.Fatal(err)
	}
	u.Logf("%s", data)
}
