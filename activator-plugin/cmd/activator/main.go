// Command activator is Knative Serving's activator with Libra in it: a drop-in
// replacement.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/kelseyhightower/envconfig"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.uber.org/zap"

	netprobe "knative.dev/networking/pkg/http/probe"
	kubeclient "knative.dev/pkg/client/injection/kube/client"
	endpointsinformer "knative.dev/pkg/client/injection/kube/informers/core/v1/endpoints"
	configmapinformer "knative.dev/pkg/configmap/informer"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/injection"
	pkglogging "knative.dev/pkg/logging"
	pkgnet "knative.dev/pkg/network"
	k8sruntime "knative.dev/pkg/observability/runtime/k8s"
	"knative.dev/pkg/signals"
	"knative.dev/pkg/system"
	"knative.dev/pkg/websocket"
	"knative.dev/serving/pkg/activator"
	activatorconfig "knative.dev/serving/pkg/activator/config"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	activatornet "knative.dev/serving/pkg/activator/net"
	asmetrics "knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/http/handler"
	o11yconfigmap "knative.dev/serving/pkg/observability/configmap"
	"knative.dev/serving/pkg/observability/otel"

	"libra.dev/libra/pkg/timerslack"
)

const (
	component = "activator"

	autoscalerPort = ":8080"

	shutdownTimeout = 10 * time.Second
)

func main() {
	if err := timerslack.Widen(); err != nil {
		log.Print("Failed to widen the timer slack, so the activator uses more CPU than it needs: ", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	flag.BoolFunc("version", "print the activator's commit and Knative version, and exit", printVersion)

	// Clients, informers and the environment.
	restConfig := injection.ParseAndGetRESTConfigOrDie()
	logInjection()
	ctx, informers := injection.Default.SetupInformers(ctx, restConfig)
	var env config
	if err := envconfig.Process("", &env); err != nil {
		log.Fatal("The activator's environment variables are not valid: ", err)
	}
	kube := kubeclient.Get(ctx)
	if err := waitForAPIServer(ctx, kube); err != nil {
		log.Fatal("The API server did not report a supported version in time: ", err)
	}

	// Logs, metrics and traces.
	logger, level := newLoggerOrDie(ctx, env.PodName)
	ctx = pkglogging.WithLogger(ctx, logger)
	defer flush(logger)
	limitMemory(cgroupRoot, logger.Named("libra"))
	pprof := k8sruntime.NewProfilingServer(logger.Named("pprof"))
	mp, tp := otel.SetupObservabilityOrDie(ctx, component, logger, pprof)
	defer shutdown(logger, "metrics", mp.Shutdown)
	defer shutdown(logger, "traces", tp.Shutdown)
	exported := startExport(logger.Named("libra"))
	defer shutdown(logger, "Libra's metrics", exported.stop)

	if err := controller.StartInformers(ctx.Done(), informers...); err != nil {
		logger.Fatalw("Failed to start the informers", zap.Error(err))
	}
	logger.Info("Informers are synced; setting up the activator with Libra in it")

	// The way to the pods. The throttler's probes and the proxy share the transport,
	// so that the first request after a probe finds its connection open.
	network := networkConfigOrDie(ctx, kube, logger)
	transport, certs := newTransportOrDie(ctx, env, network, logger)
	tlsEnabled := certs != nil
	setProbeSettingsOrDie(env, logger)
	knativeThrottler := activatornet.NewThrottler(ctx, env.PodIP)
	go knativeThrottler.Run(ctx, transport, network.EnableMeshPodAddressability, network.MeshCompatibilityMode)

	// Libra, without which the activator is as stock.
	libra := startLibra(ctx, kube, env.PodName, exported.provider, tp, logger)
	if libra.manager != nil {
		exported.tell(libra.manager.RequestsHandler())
	}
	libra.followActivators(endpointsinformer.Get(ctx).Informer(), env.PodIP, logger)

	// Config maps.
	configMaps := configmapinformer.NewInformedWatcher(kube, system.Namespace())
	configStore := activatorconfig.NewStore(logger)
	configStore.WatchConfigs(configMaps)

	// Statistics for the autoscaler.
	autoscaler := "ws://" + pkgnet.GetServiceHostname("autoscaler", system.Namespace()) + autoscalerPort
	logger.Infow("Reporting statistics to the autoscaler", "url", autoscaler)
	statSink := websocket.NewDurableSendingConnection(autoscaler, logger,
		activator.AutoscalerConnectionOptions(logger, mp)...)
	defer statSink.Shutdown()
	stats := make(chan []asmetrics.StatMessage)
	concurrencyReporter := activatorhandler.NewConcurrencyReporter(ctx, env.PodName, stats, mp)
	defer startStats(stats, concurrencyReporter.Run, statSink, logger)()
	// Before those end, because upgraded connections outlive the servers.
	defer libra.stop()

	// The chain of handlers, from the innermost to the outermost.
	var ah http.Handler = activatorhandler.New(ctx, libra.throttler(knativeThrottler), transport,
		network.EnableMeshPodAddressability, logger, tlsEnabled, tp, mp)
	ah = libra.handler(ah)
	ah = handler.NewTimeoutHandler(ah, "activator request timeout", timeouts, logger)
	ah = concurrencyReporter.Handler(ah)
	// Only the activator to which a request is passed on counts it.
	ah = libra.forward(ctx, ah, forwarding{env: env, kube: kube, network: network, tls: tlsEnabled, logger: logger, mp: exported.provider, tp: tp})
	ah = activatorhandler.NewTracingAttributeHandler(tp, ah)
	requestLog := newRequestLogOrDie(ah, logger)
	ah = requestLog
	ah = activatorhandler.NewMetricAttributeHandler(env.PodName, ah)
	ah = activatorhandler.WrapActivatorHandlerWithFullDuplex(ah, logger)
	ah = activatorhandler.NewContextHandler(ctx, ah, configStore)
	ah = otelhttp.NewHandler(ah, "handle", otelhttp.WithTracerProvider(tp), otelhttp.WithMeterProvider(mp))
	// Probes and health checks are not measured.
	ah = &activatorhandler.ProbeHandler{NextHandler: ah}
	ah = netprobe.NewHandler(ah)
	terminated, terminate := context.WithCancel(signals.NewContext())
	defer terminate()
	libra.duplicator.start(terminated)
	ah = &activatorhandler.HealthHandler{
		HealthCheck: healthCheck(terminated, statSink.Status, logger),
		NextHandler: ah,
		Logger:      logger,
	}

	configMaps.Watch(pkglogging.ConfigMapName(), pkglogging.UpdateLevelFromConfigMap(logger, level, component))
	configMaps.Watch(o11yconfigmap.Name(), updateRequestLog(requestLog, logger), pprof.UpdateFromConfigMap)
	libra.watch(configMaps, system.Namespace())
	if err := configMaps.Start(ctx.Done()); err != nil {
		logger.Fatalw("Failed to watch the ConfigMaps", "namespace", system.Namespace(), zap.Error(err))
	}

	// Serve until told to stop or a server fails, then drain.
	s := startServersOrDie(ah, pprof.Server, certs, logger)
	s.wait(terminated, terminate, logger)
	s.drain(logger)
}
