// Command demo compares stock Knative with Libra: it installs Libra and the same
// functions several times on a cluster, with and without Libra, sends all of them the same
// requests, and writes a report.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/pkg/boxcache"
)

const pushTimeout = 30 * time.Minute

// boxGateway is the Service of the box's ingress.
const boxGateway = "istio-system/knative-gateway-istio"

// options are the command's flags.
type options struct {
	kubeconfig, context string
	kubectlPath         string
	imagesFile          string
	pushTo, box         string
	gateway, gatewayURL string
	outDir, commit      string
	seed                uint64
	redisAuth           bool
}

func main() { machine.Main(newRoot()) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "demo",
		Short:         "Compare stock Knative with Libra",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newRun(), newEvaluate(), newEvaluateNodes(), newInstall())
	return root
}

// flags adds the flags that all measuring commands have.
func (o *options) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the box, as \"box kubeconfig\" prints it; with --context, one to use instead of the default")
	f.StringVar(&o.context, "context", "", "context of another cluster to run on, instead of the box")
	f.StringVar(&o.imagesFile, "images", "", "JSON file that maps image names to references, as \"box load\" writes it")
	f.StringVar(&o.pushTo, "push-to", "", "with --context, instead of --images: repository to push the images to")
	f.StringVar(&o.box, "box", "bin/box", "the box command, for --push-to")
	f.StringVar(&o.gateway, "gateway", boxGateway, "namespace/name of the Service of the ingress")
	f.StringVar(&o.gatewayURL, "gateway-url", "", "URL of the ingress, if not the Service's address")
	f.StringVar(&o.commit, "commit", "unknown", "commit to name in the results")
	f.Uint64Var(&o.seed, "seed", 1, "random seed for the requests")
}

// mayChange makes sure that the cluster is the box, or that a person confirms that it may
// be changed, with functions in the namespaces and for as long as long says. It also finds
// the images.
func (d *demo) mayChange(ctx context.Context, in *os.File, long string, namespaces ...string) (err error) {
	if d.boxed() {
		err = d.checkBox(ctx)
	} else {
		err = confirm(in, d.out, d.context, strings.Join(namespaces, ", "), long)
	}
	if err != nil {
		return err
	}
	if d.pushTo != "" {
		d.imagesFile = d.path("images.json")
		if err := d.push(ctx); err != nil {
			return err
		}
	}
	d.images, err = readImages(d.imagesFile, d.services)
	return err
}

func newDemo(o options, out io.Writer) *demo {
	return &demo{options: o, services: four, out: out, start: time.Now()}
}

// resolve checks the flags and fills in what they leave open.
func (d *demo) resolve() error {
	var errs []error
	if (d.imagesFile == "") == (d.pushTo == "") {
		errs = append(errs, errors.New("the images are not named: give --images the file that `box load` wrote or, with --context, --push-to a repository"))
	}
	env := os.Environ()
	if d.boxed() {
		if d.kubeconfig == "" {
			errs = append(errs, errors.New("there is no --kubeconfig: give it that of the box (`box kubeconfig` prints it), or name another cluster with --context"))
		}
		if d.pushTo != "" {
			errs = append(errs, errors.New("--push-to is for another cluster (--context): the box takes images from no registry"))
		}
		// The environment must not point at another cluster.
		env = withoutMisleading(env)
	}
	var err error
	if d.kubectlPath, err = d.tool(d.kubectlPath, "kubectl", "kubelite", d.boxed()); err != nil {
		errs = append(errs, err)
	}
	d.kubectl = kubectl{path: d.kubectlPath, env: env}
	if d.kubeconfig != "" {
		d.kubectl.flags = append(d.kubectl.flags, "--kubeconfig="+d.kubeconfig)
	}
	if d.context != "" {
		d.kubectl.flags = append(d.kubectl.flags, "--context="+d.context)
	}
	return errors.Join(errs...)
}

// tool returns the path of a command: the given one, the box's, or the one on the PATH.
func (d *demo) tool(given, name, boxName string, fromBox bool) (string, error) {
	if given != "" {
		return exec.LookPath(given)
	}
	if fromBox {
		if path, err := boxcache.Binary(boxName); err == nil {
			if path, err = exec.LookPath(path); err == nil {
				return path, nil
			}
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("there is no %s, neither the box's nor on the PATH: run `box build`", name)
	}
	return path, nil
}

// confirm asks a person for the name of the cluster.
func confirm(in *os.File, out io.Writer, cluster, namespaces, long string) error {
	info, err := in.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return fmt.Errorf("cluster %q is not the box, so a person at a terminal must confirm that it may be changed", cluster)
	}
	return ask(in, out, cluster, namespaces, long)
}

func ask(in io.Reader, out io.Writer, cluster, namespaces, long string) error {
	fmt.Fprintf(out, `On the cluster of context %[1]q this will, for %[5]s,
  - replace the activator in %[2]s, through which requests to other Knative services go too,
  - install Libra in the namespaces %[3]s and %[6]s, and functions in %[4]s,
and at the end put the stock activator back and remove everything that it installed.
Type the context's name to go on: `, cluster, servingNamespace, libraNamespace, namespaces, long, agentNamespace)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if strings.TrimSpace(answer) != cluster {
		if err != nil {
			fmt.Fprintln(out)
		}
		return fmt.Errorf("the answer is not %q: nothing was changed", cluster)
	}
	return nil
}

// push builds the images and pushes them, and writes the file that names them.
func (d *demo) push(ctx context.Context) error {
	d.say("pushing the images to %s", d.pushTo)
	if err := os.MkdirAll(d.outDir, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.box, "push", "--to", d.pushTo, "--out", d.imagesFile)
	cmd.Stdout, cmd.Stderr = d.out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("push the images to %s: %w", d.pushTo, err)
	}
	return nil
}

// withoutMisleading returns env without the variables that lead to a cluster other than the
// box, or to a proxy: the box's addresses are this machine's own.
func withoutMisleading(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "KUBECONFIG"}, strings.ToUpper(name))
	})
}
