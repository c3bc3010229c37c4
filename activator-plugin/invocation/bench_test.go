package invocation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	activatorhandler "knative.dev/serving/pkg/activator/handler"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

// BenchmarkRequest measures what Libra adds to a request. A few connections, each with a pod, send
// the next request when they have an answer. The function takes a millisecond; sending to it, and the
// rest of the activator, are not measured. cpu-us/op and redis-us/op are the CPU time for a request,
// of this process and of Redis. Most requests that could neither lend nor borrow are not reported to
// Redis; all of a donor's are.
func BenchmarkRequest(b *testing.B) {
	for _, connections := range []int{4, 16} {
		b.Run(fmt.Sprintf("connections=%d/libra=off", connections), func(b *testing.B) {
			stock := func(next activatorhandler.Throttler) activatorhandler.Throttler { return next }
			benchRequests(b, connections, benchHandler(b, stock), func() {})
		})
		for _, kind := range []string{"neither", "donor"} {
			b.Run(fmt.Sprintf("connections=%d/libra=%s", connections, kind), func(b *testing.B) {
				var objects []runtime.Object
				var names []string
				for i := range connections {
					names = append(names, "ns/pod-"+strconv.Itoa(i))
					objects = append(objects, newPod("pod-"+strconv.Itoa(i), benchIP(i)))
				}
				addr := redistest.StartServer(b).Addr // over TCP, as in a cluster
				p := pool.NewRedis(redisconn.MustParse(addr))
				defer p.Close()
				m := benchManager(b, kind, p, runPods(b, objects...))
				for i := range connections {
					pod, _ := m.pods.find(benchIP(i), revID, api.UserContainer)
					m.pods.noteServed(pod)
				}
				openNode(b, p, names...)
				h := m.Handler(benchHandler(b, m.Throttler))
				benchRequests(b, connections, h, m.lifecycle.running.Wait) // until all is warm
				before := redisCPU(b, addr)
				b.ResetTimer()
				benchRequests(b, connections, h, m.lifecycle.running.Wait)
				b.StopTimer()
				b.ReportMetric(float64((redisCPU(b, addr)-before).Nanoseconds())/1000/float64(b.N), "redis-us/op")
				drain(b, m.lifecycle)
			})
		}
	}
}

func benchIP(i int) string { return fmt.Sprintf("10.0.0.%d", i+1) }

// benchManager has a real client of a predictor that knows one function.
func benchManager(b *testing.B, kind string, p pool.Pool, pods *Pods) *Manager {
	b.Helper()
	duration := int64(1)
	if kind == "donor" {
		duration = 60_000
	}
	tensor := func(name string, data ...int64) map[string]any {
		return map[string]any{"name": name, "datatype": "INT64", "shape": []int{len(data)}, "data": append([]int64{}, data...)}
	}
	answer, err := json.Marshal(map[string]any{
		"parameters": map[string]string{"version": "1"},
		"outputs": []any{
			tensor("cpu_milli_thresholds"), tensor("cpu_milli_values", 300),
			tensor("memory_bytes_thresholds"), tensor("memory_bytes_values", 64<<20),
			tensor("duration_ms_thresholds"), tensor("duration_ms_values", duration),
			tensor("cpu_time_us_thresholds"), tensor("cpu_time_us_values", 0),
			tensor("unknown", 300, 64<<20, duration), tensor("unknown_cpu_time_us", 0),
			tensor("offset", 0, 0), tensor("largest", 0, 0), tensor("largest_size", 1<<30),
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	predictor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(answer) }))
	b.Cleanup(predictor.Close)
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	client, err := predict.New(predict.Options{
		URL: predictor.URL, Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: provider,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(client.Close)
	m, err := NewManager(Options{
		Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: provider,
		Pool: p, Predictor: client, Pods: pods, Owner: "owner", Settings: full,
	})
	if err != nil {
		b.Fatal(err)
	}
	// Every call has to be answered, on a machine that has nothing else to do.
	m.lifecycle.beginTimeout, m.lifecycle.lateAfter = testTimeout, testTimeout
	return m
}

type destKey struct{}

// benchThrottler has a slot at the pod of the connection.
type benchThrottler struct{ oneDest }

func (t benchThrottler) Try(ctx context.Context, rev types.NamespacedName, fn func(string, bool) error) error {
	t.dest = ctx.Value(destKey{}).(string)
	return t.oneDest.Try(ctx, rev, fn)
}

// benchHandler is the activation handler before a function that takes a millisecond.
func benchHandler(b *testing.B, wrap func(activatorhandler.Throttler) activatorhandler.Throttler) http.Handler {
	throttler := wrap(benchThrottler{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := throttler.Try(r.Context(), revID, func(string, bool) error {
			time.Sleep(time.Millisecond)
			w.WriteHeader(http.StatusOK)
			return nil
		})
		if err != nil {
			b.Error("Try() =", err)
		}
	})
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

// benchRequests sends b.N requests, and then calls wait for what goes on after the answers.
func benchRequests(b *testing.B, connections int, h http.Handler, wait func()) {
	b.ReportAllocs()
	rev := newRevision()
	before := processCPU(b)
	var all sync.WaitGroup
	for i := range connections {
		all.Go(func() {
			ctx := context.WithValue(context.Background(), destKey{}, benchIP(i)+":8012")
			r := httptest.NewRequest(http.MethodPost, "http://function.ns", http.NoBody)
			r = r.WithContext(activatorhandler.WithRevisionAndID(ctx, rev, revID))
			w := discard{http.Header{}}
			for n := i; n < b.N; n += connections {
				h.ServeHTTP(w, r)
			}
		})
	}
	all.Wait()
	wait()
	b.ReportMetric(float64((processCPU(b)-before).Nanoseconds())/1000/float64(b.N), "cpu-us/op")
}

// processCPU is the CPU time that this process has used.
func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// redisCPU is the CPU time that a Redis has used.
func redisCPU(b *testing.B, addr string) time.Duration {
	b.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	info, err := client.InfoMap(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	var seconds float64
	for _, key := range []string{"used_cpu_user", "used_cpu_sys"} {
		s, err := strconv.ParseFloat(strings.TrimSpace(info["CPU"][key]), 64)
		if err != nil {
			b.Fatal(err)
		}
		seconds += s
	}
	return time.Duration(seconds * float64(time.Second))
}

// BenchmarkMetricsOf10000Revisions measures what the metrics of many revisions hold: nine sets each,
// as an activator has for one whose requests lend, borrow and are sampled.
func BenchmarkMetricsOf10000Revisions(b *testing.B) {
	b.Setenv("OTEL_GO_X_CARDINALITY_LIMIT", strconv.Itoa(maxOptions))
	held := func() float64 {
		goruntime.GC()
		var stats goruntime.MemStats
		goruntime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc) / (1 << 20)
	}
	for b.Loop() {
		before := held()
		reader := sdkmetric.NewManualReader()
		m, err := newMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithExemplarFilter(exemplar.AlwaysOffFilter)))
		if err != nil {
			b.Fatal(err)
		}
		for i := range 10_000 {
			rev := types.NamespacedName{Namespace: fmt.Sprintf("team-%03d", i%200), Name: fmt.Sprintf("function-%05d-00001", i)}
			m.onDispatch(rev, roleDonor, reasonNone, false)
			m.onDispatch(rev, roleNeither, reasonNone, false)
			m.onDispatch(rev, roleUnmanaged, reasonSampled, false)
			m.onDispatch(rev, roleUnmanaged, reasonFirst, false)
			m.onEnded(rev, pool.Outcome{Found: true})
			m.onEnded(rev, pool.Outcome{Found: true, Lent: api.Resources{CPUMilli: 1}})
			m.onRequest(rev, time.Second)
			m.onVolumes(rev, volumes{surplus: api.Resources{CPUMilli: 1}, want: api.Resources{CPUMilli: 1}}, false, time.Second)
		}
		b.ReportMetric(held()-before, "MiB")
		var all metricdata.ResourceMetrics
		if err := reader.Collect(context.Background(), &all); err != nil {
			b.Fatal(err)
		}
		goruntime.KeepAlive(m)
	}
}
