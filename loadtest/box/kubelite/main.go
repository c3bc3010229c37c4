// Command kubelite is a whole Kubernetes in one static binary: it runs the
// component that its own name or its first argument names.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var components = map[string]func(args []string) int{
	"etcd": func(args []string) int {
		etcdmain.Main(args)
		return 0
	},
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllermanager.NewControllerManagerCommand),
	"kube-proxy":              command(proxy.NewProxyCommand),
	"kube-scheduler": command(func() *cobra.Command {
		return scheduler.NewSchedulerCommand()
	}),
	"kubectl": command(kubectl.NewDefaultKubectlCommand),
	"kubelet": command(func() *cobra.Command {
		return kubelet.NewKubeletCommand(context.Background())
	}),
}

func command(build func() *cobra.Command) func([]string) int {
	return func([]string) int { return cli.Run(build()) }
}

func main() {
	name := filepath.Base(os.Args[0])
	if components[name] == nil && len(os.Args) > 1 {
		// Everything below reads os.Args, kubectl's plugin handling included.
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	run, ok := components[name]
	if !ok {
		names := slices.Sorted(maps.Keys(components))
		fmt.Fprintf(os.Stderr, "kubelite: there is no component %q; the name of the program or its first argument must be one of: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(run(os.Args))
}
