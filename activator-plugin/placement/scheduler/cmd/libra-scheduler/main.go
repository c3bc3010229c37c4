// Command libra-scheduler is kube-scheduler with Libra's plugin.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // for --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	scheduler "libra.dev/libra/activator-plugin/placement/scheduler"
)

func main() {
	os.Exit(cli.Run(scheduler.NewCommand()))
}
