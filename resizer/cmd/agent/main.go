// Command agent is Libra on one node: it sets the limits of the node's functions to what the pool
// says, gives donors back what they need at once, and tells the predictor what each invocation really
// used.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/pkg/timerslack"
	"libra.dev/libra/resizer/agent"
	"libra.dev/libra/resizer/telemetry"
)

type options struct {
	agent.Settings
	redisAddr        string
	redisCredentials string
	metricsAddr      string
	healthAddr       string
	log              zap.Options
}

// gcPercent is GOGC unless the environment sets that. The agent makes little garbage, and each of its
// pods takes memory that a node has for functions.
const gcPercent = 30

func main() {
	slackErr := timerslack.Widen()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	o := parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.log)))
	if slackErr != nil {
		ctrl.Log.Info("the agent takes more CPU than it needs to", "reason", slackErr.Error())
	}
	if err := run(o); err != nil {
		ctrl.Log.Error(err, "the agent exits because of an error")
		os.Exit(1)
	}
}

func parse() options {
	var o options
	flag.StringVar(&o.Node, "node", os.Getenv("NODE_NAME"), "name of the node that the agent runs on; default from NODE_NAME")
	flag.StringVar(&o.redisAddr, "redis-addr", cmp.Or(os.Getenv("LIBRA_REDIS_ADDR"), redisconn.DefaultAddr),
		"the Redis that holds the pools: "+redisconn.Accepted+"; default from LIBRA_REDIS_ADDR")
	flag.StringVar(&o.redisCredentials, "redis-credentials", os.Getenv("LIBRA_REDIS_CREDENTIALS"),
		"folder with the files username, password and ca.crt for Redis, each of which may be missing; default from LIBRA_REDIS_CREDENTIALS")
	flag.StringVar(&o.CgroupRoot, "cgroup-root", cmp.Or(os.Getenv("LIBRA_CGROUP_ROOT"), "/sys/fs/cgroup"),
		"where the host's cgroups are mounted, read-write; default from LIBRA_CGROUP_ROOT")
	flag.StringVar(&o.JournalDir, "journal-dir", cmp.Or(os.Getenv("LIBRA_JOURNAL_DIR"), "/run/libra-agent"),
		"folder for the record of what changed containers are owed, which must outlive the agent; default from LIBRA_JOURNAL_DIR")
	flag.StringVar(&o.ProcRoot, "proc-root", cmp.Or(os.Getenv("LIBRA_PROC_ROOT"), "/proc"),
		"where proc is mounted: stat and meminfo show what the node has idle and, where cgroups have no pressure files, the host's processes show what waits for CPU; default from LIBRA_PROC_ROOT")
	flag.DurationVar(&o.SampleLowered, "sample-lowered", 10*time.Millisecond,
		"how often to read a container whose limit differs from what it is owed, from 1ms to 25ms")
	safeguard := flag.Bool("safeguard", true, "give a donor back what it lends when its use comes near its lowered limit; false is for experiments")
	clamp := flag.Bool("clamp", true, "hold functions to their allocations while pods that did not opt in wait for CPU; false is for experiments")
	weights := flag.Bool("weights", true, "set the CPU weights of pods by what is in flight in them; false is for experiments")
	flag.StringVar(&o.metricsAddr, "metrics-addr", ":8080", "address of /metrics")
	flag.StringVar(&o.healthAddr, "health-addr", ":8081", "address of /healthz and /readyz")
	o.log.StacktraceLevel = zapcore.PanicLevel // the text of an error says where it was made
	o.log.BindFlags(flag.CommandLine)
	flag.Parse()
	o.Unguarded, o.Unclamped, o.Unweighted = !*safeguard, !*clamp, !*weights
	return o
}

func run(o options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	server, err := redisconn.Parse(o.redisAddr, o.redisCredentials)
	if err != nil {
		return fmt.Errorf("--redis-addr, --redis-credentials: %w", err)
	}
	ctx := ctrl.SetupSignalHandler()
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the cluster: %w", err)
	}

	told, err := telemetry.New(ctx, "libra-agent", ctrlmetrics.Registry, ctrl.Log.WithName("telemetry"))
	if err != nil {
		return err
	}
	defer told.Shutdown()

	options, err := agent.ManagerOptions(o.Node)
	if err != nil {
		return err
	}
	options.Metrics = metricsserver.Options{BindAddress: o.metricsAddr}
	options.HealthProbeBindAddress = o.healthAddr
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}

	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of the cluster: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client that reads HarvestPolicies: %w", err)
	}
	live, err := settings.NewLive(clients, objects, func(err error) { ctrl.Log.WithName("settings").Error(err, "some settings may not take effect") })
	if err != nil {
		return err
	}
	if err := live.Meter(told.Meters); err != nil {
		return err
	}
	pools := pool.NewAgentRedis(server)
	defer pools.Close() //nolint:errcheck // the process ends
	a, tracker, err := agent.New(clock.RealClock{}, mgr.GetClient(), mgr.GetAPIReader(), live, o.Settings, agent.Redis{
		Pool: pools, Watcher: pools.Watch(o.Node), Observer: pools,
	}, told.Meters, told.Tracers)
	if err != nil {
		return err
	}
	a.ReportTo(pools)
	platform, err := a.FollowPlatform(clients, live)
	if err != nil {
		return err
	}
	following := manager.RunnableFunc(func(ctx context.Context) error {
		live.Run(ctx)
		return nil
	})
	if err := errors.Join(mgr.Add(following), mgr.Add(platform), tracker.Register(mgr), mgr.Add(a),
		mgr.AddHealthzCheck("agent", a.Healthy), mgr.AddReadyzCheck("agent", a.Ready), mgr.AddReadyzCheck("settings", live.Ready)); err != nil {
		return fmt.Errorf("adding the agent to the manager: %w", err)
	}
	return mgr.Start(ctx)
}
