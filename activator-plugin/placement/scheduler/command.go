package scheduler

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"libra.dev/libra/pkg/redisconn"
)

// Options are the plugin's options, given as flags like those of Libra's other parts: a profile's configuration does
// not say where Redis is.
type Options struct {
	RedisAddr        string
	RedisCredentials string
}

// NewCommand returns kube-scheduler's command, with the plugin for profiles that enable it.
func NewCommand() *cobra.Command {
	o := &Options{}
	cmd := app.NewSchedulerCommand(app.WithPlugin(Name, o.New))
	cmd.Use = "libra-scheduler"
	cmd.Long = fmt.Sprintf(`The Kubernetes scheduler, with the plugin %s for profiles that enable it.

Libra flags:

      --redis-addr string          %s (default %q)
      --redis-credentials string   folder with the user, password and CA of Redis; empty for none`, Name, redisconn.Accepted, redisconn.DefaultAddr)
	cmd.Flags().StringVar(&o.RedisAddr, "redis-addr", redisconn.DefaultAddr, redisconn.Accepted)
	cmd.Flags().StringVar(&o.RedisCredentials, "redis-credentials", "", "folder with the user, password and CA of Redis")
	return cmd
}

// New makes the plugin for a profile. It implements the scheduler's PluginFactory.
func (o *Options) New(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	if args != nil {
		return nil, fmt.Errorf("plugin %s has args, want none: the flags --redis-addr and --redis-credentials say where Redis is", Name)
	}
	server, err := redisconn.Parse(o.RedisAddr, o.RedisCredentials)
	if err != nil {
		return nil, fmt.Errorf("--redis-addr, --redis-credentials: %w", err)
	}
	return newPlugin(ctx, server, handle)
}
