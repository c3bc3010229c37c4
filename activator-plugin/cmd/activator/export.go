package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
	"go.uber.org/zap"
	"knative.dev/pkg/observability/resource"

	"libra.dev/libra/pkg/api"
)

const (
	metricsAddrEnv = "LIBRA_METRICS_ADDR"

	// scrapeTimeout is enough for a scrape of metricSets series.
	scrapeTimeout = 30 * time.Second
	scrapesAtOnce = 4
)

// export serves Libra's own metrics to scrapers, whatever Knative is told to do with its own.
type export struct {
	provider *sdkmetric.MeterProvider
	mux      *http.ServeMux
	server   *http.Server
	address  string // set once the server listens
}

// startExport never fails the activator: if it cannot listen on the address, metrics are counted but not served.
func startExport(logger *zap.SugaredLogger) *export {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	// Exemplars would take up two fifths of what the metrics of revisions hold, whether or not anybody scrapes them:
	// BenchmarkMetricsOf10000Revisions in package invocation.
	counted := append(roomForRevisions(), sdkmetric.WithResource(resource.Default(component)), sdkmetric.WithExemplarFilter(exemplar.AlwaysOffFilter))
	if exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo()); err != nil {
		logger.Errorw("Libra's metrics are not exported", zap.Error(err))
	} else {
		counted = append(counted, sdkmetric.WithReader(exporter))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: zap.NewStdLog(logger.Desugar()), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapesAtOnce, Timeout: scrapeTimeout,
	}))
	e := &export{
		provider: sdkmetric.NewMeterProvider(counted...),
		mux:      mux,
		server: &http.Server{
			Handler:           mux,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      scrapeTimeout + 5*time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    16 << 10,
		},
	}
	at := cmp.Or(os.Getenv(metricsAddrEnv), ":"+strconv.Itoa(api.ActivatorMetricsPort))
	listener, err := net.Listen("tcp", at)
	if err != nil {
		logger.Errorw("Libra's metrics are not served: set "+metricsAddrEnv+" to a free address, such as :9095",
			"address", at, zap.Error(err))
		return e
	}
	e.address = listener.Addr().String()
	go func() {
		if err := e.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Errorw("Libra's metrics are no longer served", "address", at, zap.Error(err))
		}
	}()
	logger.Infow("Serving Libra's metrics", "address", e.address)
	return e
}

// tell serves the last requests of all functions on the same port, but only at the pod's loopback address. Only those who may
// forward a port to the pod reach that, and nobody else in the cluster.
func (e *export) tell(requests http.Handler) {
	e.mux.HandleFunc("GET "+api.ActivatorRequestsPath, func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if at == nil || !at.IP.IsLoopback() {
			http.Error(w, "this path is served only at the pod's loopback address: use kubectl port-forward", http.StatusForbidden)
			return
		}
		requests.ServeHTTP(w, r)
	})
}

func (e *export) stop(ctx context.Context) error {
	return errors.Join(e.server.Close(), e.provider.Shutdown(ctx))
}
