package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/kelseyhightower/envconfig"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"knative.dev/pkg/configmap"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	autoscalerconfig "knative.dev/serving/pkg/autoscaler/config"
	servingscheme "knative.dev/serving/pkg/client/clientset/versioned/scheme"
	servingclient "knative.dev/serving/pkg/client/injection/client"

	"libra.dev/libra/activator-plugin/duplicator"
	"libra.dev/libra/activator-plugin/invocation"
	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/activator-plugin/queue"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
)

// libraConfig is read as text, so that all errors in it are reported at once, each with the form
// that is accepted.
type libraConfig struct {
	// The Redis that holds the pools.
	RedisAddr string `split_words:"true" default:"redis.libra-system.svc:6379"`
	// Folder with the files username, password and ca.crt for Redis, each of which may be missing.
	RedisCredentials string `split_words:"true"`
	// Where the predictor is asked.
	PredictorURL string `split_words:"true" default:"http://libra-predictor.libra-system.svc"`

	redis      redisconn.Server
	duplicator duplicatorConfig
}

func libraConfigFromEnv() (libraConfig, error) {
	var cfg libraConfig
	if err := envconfig.Process("libra", &cfg); err != nil {
		return cfg, err
	}
	var errs []error
	var err error
	if cfg.redis, err = redisconn.Parse(cfg.RedisAddr, cfg.RedisCredentials); err != nil {
		errs = append(errs, fmt.Errorf("LIBRA_REDIS_ADDR, LIBRA_REDIS_CREDENTIALS: %w", err))
	}
	if _, err := predict.ParseURL(cfg.PredictorURL); err != nil {
		errs = append(errs, fmt.Errorf("LIBRA_PREDICTOR_URL: %w", err))
	}
	errs = append(errs, cfg.duplicator.fromEnv())
	return cfg, errors.Join(errs...)
}

// libra is Libra's part of the activator. Its zero value does nothing: everything runs as stock.
type libra struct {
	manager    *invocation.Manager
	lines      *queue.Lines
	duplicator *duplication
	stop       func()
}

// startLibra never fails the activator, and itself contacts neither Redis nor the predictor.
func startLibra(ctx context.Context, kube kubernetes.Interface, podName string, mp metric.MeterProvider, tp trace.TracerProvider, logger *zap.SugaredLogger) libra {
	l, err := newLibra(ctx, kube, podName, mp, tp, logger.Named("libra"))
	if err != nil {
		logger.Errorw("Libra is off: every request runs as with the stock activator", zap.Error(err))
		return libra{stop: func() {}}
	}
	return l
}

func newLibra(ctx context.Context, kube kubernetes.Interface, podName string, mp metric.MeterProvider, tp trace.TracerProvider, logger *zap.SugaredLogger) (_ libra, err error) {
	cfg, err := libraConfigFromEnv()
	if err != nil {
		return libra{}, fmt.Errorf("reading Libra's settings: %w", err)
	}
	live, err := followSettings(ctx, kube, logger)
	if err != nil {
		return libra{}, err
	}
	if err := live.Meter(mp); err != nil {
		return libra{}, err
	}
	pods, err := invocation.NewPods(kube, logger)
	if err != nil {
		return libra{}, err
	}
	predictor, err := predict.New(predict.Options{
		URL:           cfg.PredictorURL,
		Redis:         cfg.redis,
		Clock:         clock.RealClock{},
		Logger:        logger,
		MeterProvider: mp,
	})
	if err != nil {
		return libra{}, err
	}
	owner := podName + "." + rand.String(8)
	redis := pool.NewRedis(cfg.redis)
	events, stopEvents := newRecorder(kube)
	defer func() {
		if err != nil {
			stopEvents()
			err = errors.Join(err, redis.Close())
		}
	}()
	picture, err := placement.NewPicture(placement.PictureOptions{Profiles: redis, Clock: clock.RealClock{}, Logger: logger, MeterProvider: mp})
	if err != nil {
		return libra{}, err
	}
	written, err := newPolicies(ctx, kube, podName, live, events, mp, logger)
	if err != nil {
		return libra{}, err
	}
	manager, err := invocation.NewManager(invocation.Options{
		Clock:          clock.RealClock{},
		Logger:         logger,
		MeterProvider:  mp,
		TracerProvider: tp,
		Pool:           redis,
		Predictor:      predictor,
		Pods:           pods,
		Owner:          owner,
		Settings:       live,
		Events:         events,
		Views:          picture,
		Programs:       written,
	})
	if err != nil {
		return libra{}, err
	}
	lines, err := queue.New(queue.Options{Clock: clock.RealClock{}, MeterProvider: mp, Request: manager.QueueOrder})
	if err != nil {
		return libra{}, err
	}
	var duplicating *duplication
	if cfg.duplicator.on {
		duplicating, err = newDuplication(duplicator.Options{
			Clock:         clock.RealClock{},
			Logger:        logger,
			MeterProvider: mp,
			Events:        events,
			Serving:       servingclient.Get(ctx),
			Redis:         cfg.redis,
			Owner:         owner,
			Largest:       cfg.duplicator.largest,
			Stopped:       func(namespace string) bool { return live.For(namespace).MaxMode == api.ModeObserve },
		})
		if err != nil {
			return libra{}, err
		}
	}

	live.OnChange(manager.Slots().LendingChanged)
	// All that reads or renews is over before Redis is closed, so that it does not fail for that. The context of the
	// activator is done only after stop has returned.
	running, stopRunning := context.WithCancel(ctx)
	go live.Run(running)
	go picture.Run(running)
	go manager.Run(running)
	go predictor.Run(running)
	reporting, stopReporting := context.WithCancel(ctx)
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		newReportSender(redis, owner, manager, predictor, logger).Run(reporting)
	}()
	startPolicies(running, written, logger, pods.HasSynced, live.Synced)
	logger.Infow("Libra is on", "redis", cfg.redis.String(), "predictor", cfg.PredictorURL, "duplicator", cfg.duplicator.on)
	return libra{manager: manager, lines: lines, duplicator: duplicating, stop: func() {
		if err := duplicating.stop(); err != nil {
			logger.Warnw("Failed to close the duplicator", zap.Error(err))
		}
		// All requests that count have ended. Upgraded connections may stay open for longer than the drain lasts, and the
		// sender, which sends once more, must not wait for them.
		stopReporting()
		drainCtx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if err := manager.Drain(drainCtx); err != nil {
			logger.Warnw("Stopped before all invocations had ended; the rest end when their lease expires", zap.Error(err))
		}
		<-reported
		stopRunning()
		stopEvents()
		predictor.Close()
		if err := redis.Close(); err != nil {
			logger.Warnw("Failed to close Redis", zap.Error(err))
		}
	}}, nil
}

// newRecorder returns a recorder of Events on revisions. It drops Events that the API server
// does not accept soon. Of the Events on one revision it sends at most 25, and then one every
// five minutes, which is client-go's limit. stop ends its goroutines.
func newRecorder(kube kubernetes.Interface) (recorder record.EventRecorder, stop func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(context.Background()))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: kube.CoreV1().Events(corev1.NamespaceAll)})
	return broadcaster.NewRecorder(servingscheme.Scheme, corev1.EventSource{Component: "libra-activator"}), broadcaster.Shutdown
}

func (l libra) throttler(next activatorhandler.Throttler) activatorhandler.Throttler {
	if l.manager == nil {
		return next
	}
	return l.manager.Throttler(l.lines.Throttler(next))
}

// watch follows what Knative's own settings tell Libra. A missing ConfigMap, without which stock
// starts as well, counts as an empty one.
func (l libra) watch(configMaps configmap.DefaultingWatcher, namespace string) {
	if l.manager == nil {
		return
	}
	empty := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: autoscalerconfig.ConfigName}}
	configMaps.WatchWithDefault(empty, l.manager.FollowAutoscaler)
}

// followActivators follows each revision's activators, and which of them this one, at self, is.
func (l libra) followActivators(endpoints cache.SharedIndexInformer, self string, logger *zap.SugaredLogger) {
	if l.manager == nil {
		return
	}
	if err := l.manager.Slots().FollowActivators(endpoints, self); err != nil {
		logger.Errorw("Cannot follow the other activators, so requests may go to pods that other activators use as well", zap.Error(err))
	}
}

func (l libra) handler(next http.Handler) http.Handler {
	if l.manager == nil {
		return next
	}
	return l.duplicator.handler(l.manager.Handler(next))
}
