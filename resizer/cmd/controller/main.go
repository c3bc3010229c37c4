// Command controller is Libra's resizer: it writes lasting limits into pods' specs, through the pods/resize
// subresource. These are ceilings of CPU, and memory beyond what owners configured.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/controller"
	"libra.dev/libra/resizer/policies"
	"libra.dev/libra/resizer/reports"
	"libra.dev/libra/resizer/telemetry"
)

const (
	// leaseDuration is how long a replica that vanished keeps the others waiting. It is as long as it can be
	// for the next one to act within ten seconds, although that one may have seen the last renewal late, and
	// sees late that the lease ran out.
	leaseDuration = 6 * time.Second
	// renewDeadline is how long after its last renewal of the lease a leader gives up, not counting a retry
	// period. It is as late as it can be before another replica takes the lease, because machines do stall
	// for seconds.
	renewDeadline = leaseDuration * 3 / 4
	// retryPeriod is how often the leader renews the lease and, except for some jitter, how often the others
	// look whether it did.
	retryPeriod = leaseDuration / 8
)

type options struct {
	redisAddr        string
	redisCredentials string
	metricsAddr      string
	healthAddr       string
	podName          string
	log              zap.Options
}

// gcPercent is GOGC unless the environment sets that. Most of the heap is the cache, in which little changes:
// collecting more often costs little (the whole controller takes a twentieth of a core in a cluster of 50,000
// pods), and leaves less memory unused.
const gcPercent = 30

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	o := parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.log)))
	err := run(o)
	if leaseLost(err) {
		// Kubernetes would back off before it restarts the container, for up to five minutes; and an API
		// server that stalls takes the lease from every replica.
		ctrl.Log.Info("could not renew the lease in time: restarting the process in the same container")
		err = beginAnew()
	}
	if err != nil {
		ctrl.Log.Error(err, "the resizer exits because of an error")
		os.Exit(1)
	}
}

// leaseLost reports whether a manager ended because it could not renew its lease. controller-runtime has no
// error value for that.
func leaseLost(err error) bool { return err != nil && err.Error() == "leader election lost" }

// beginAnew replaces this process by a new one that knows nothing of it: this one may not go on with what it
// did as the leader.
func beginAnew() error {
	program, err := os.Executable()
	if err == nil {
		err = unix.Exec(program, os.Args, os.Environ())
	}
	return fmt.Errorf("restarting the process: %w", err)
}

func parse() options {
	var o options
	flag.StringVar(&o.redisAddr, "redis-addr", cmp.Or(os.Getenv("LIBRA_REDIS_ADDR"), redisconn.DefaultAddr),
		"the Redis that holds the pools: "+redisconn.Accepted+"; default from LIBRA_REDIS_ADDR")
	flag.StringVar(&o.redisCredentials, "redis-credentials", os.Getenv("LIBRA_REDIS_CREDENTIALS"),
		"folder with the files username, password and ca.crt for Redis, each of which may be missing; default from LIBRA_REDIS_CREDENTIALS")
	flag.StringVar(&o.metricsAddr, "metrics-addr", ":8080", "address of /metrics")
	flag.StringVar(&o.healthAddr, "health-addr", ":8081", "address of /healthz and /readyz")
	flag.StringVar(&o.podName, "pod-name", os.Getenv("POD_NAME"),
		"name of the resizer's pod, so that a restarted container resumes its lease at once; default from POD_NAME")
	o.log.StacktraceLevel = zapcore.PanicLevel // the text of an error says where it was made
	o.log.BindFlags(flag.CommandLine)
	flag.Parse()
	return o
}

// lock returns the lease that elects the leader. Its holder is the pod and not the process: when a container
// restarts, the one before it is gone for certain.
func (o options) lock(config *rest.Config) (resourcelock.Interface, error) {
	identity := o.podName
	if identity == "" {
		identity = string(uuid.NewUUID())
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, settings.Namespace, settings.Resizer,
		resourcelock.ResourceLockConfig{Identity: identity}, config, renewDeadline)
	if err != nil {
		return nil, fmt.Errorf("making the lease: %w", err)
	}
	return lock, nil
}

// follow returns the cluster's settings, which change nothing until they are run.
func follow(config *rest.Config) (*settings.Live, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the client that reads the settings: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the client that reads HarvestPolicies: %w", err)
	}
	log := ctrl.Log.WithName("settings")
	return settings.NewLive(client, objects, func(err error) { log.Error(err, "some settings may not take effect") })
}

// leaderOrNot runs in every replica: one that takes over must know the settings at once.
type leaderOrNot func(context.Context)

func (f leaderOrNot) Start(ctx context.Context) error {
	f(ctx)
	return nil
}

func (leaderOrNot) NeedLeaderElection() bool { return false }

func run(o options) error {
	server, err := redisconn.Parse(o.redisAddr, o.redisCredentials)
	if err != nil {
		return fmt.Errorf("--redis-addr, --redis-credentials: %w", err)
	}
	ctx := ctrl.SetupSignalHandler()
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the cluster: %w", err)
	}
	config.QPS = -1 // the controller bounds its resizes itself

	told, err := telemetry.New(ctx, "libra-resizer", ctrlmetrics.Registry, ctrl.Log.WithName("telemetry"))
	if err != nil {
		return err
	}
	defer told.Shutdown()

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), servingv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("registering API types: %w", err)
	}
	lock, err := o.lock(config)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                              scheme,
		Cache:                               controller.CacheOptions(),
		Metrics:                             metricsserver.Options{BindAddress: o.metricsAddr},
		HealthProbeBindAddress:              o.healthAddr,
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       ptr.To(leaseDuration),
		RenewDeadline:                       ptr.To(renewDeadline),
		RetryPeriod:                         ptr.To(retryPeriod),
	})
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	live, err := follow(config)
	if err != nil {
		return err
	}
	if err := live.Meter(told.Meters); err != nil {
		return err
	}
	if err := mgr.Add(leaderOrNot(live.Run)); err != nil {
		return fmt.Errorf("following the settings: %w", err)
	}
	pools := pool.NewRedis(server)
	defer pools.Close() //nolint:errcheck // the process ends
	follower := pools.FollowMemory()
	c, err := controller.New(clock.RealClock{}, mgr.GetClient(), pools, live, follower,
		mgr.GetEventRecorder("libra-resizer"), told.Meters, told.Tracers,
		controller.Settings{ResizesPerSecond: 100, Burst: 200, TotalResizesPerSecond: 500, TotalBurst: 1000})
	if err != nil {
		return err
	}
	if err := c.Register(ctx, mgr); err != nil {
		return err
	}
	writer := reports.NewWriter(clock.RealClock{}, ctrl.Log.WithName("reports"), pools, mgr.GetCache(), mgr.GetAPIReader(), mgr.GetClient(), live)
	if err := mgr.Add(writer); err != nil {
		return fmt.Errorf("adding the writer of reports: %w", err)
	}
	if err := mgr.Add(policies.NewWriter(clock.RealClock{}, ctrl.Log.WithName("policies"), mgr.GetCache(), mgr.GetClient(), live, mgr.GetEventRecorder("libra-resizer"))); err != nil {
		return fmt.Errorf("adding the writer of the status of HarvestPolicies: %w", err)
	}

	synced := func(r *http.Request) error {
		if !mgr.GetCache().WaitForCacheSync(r.Context()) {
			return errors.New("still listing pods, Revisions and Nodes; the log names any refusal")
		}
		return nil
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("cache", synced), mgr.AddReadyzCheck("settings", live.Ready)); err != nil {
		return fmt.Errorf("adding probes: %w", err)
	}
	return mgr.Start(ctx)
}
