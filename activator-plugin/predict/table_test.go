package predict

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

func exampleTable() *Table {
	return &Table{
		Version:        7,
		Estimator:      "xgboost",
		Stage:          "modelled",
		Reason:         "52 observations",
		cpuMilli:       steps{thresholds: []int64{1000, 5000}, values: []int64{100, 500, 1200}},
		memoryBytes:    steps{thresholds: []int64{}, values: []int64{64 << 20}},
		durationMillis: steps{thresholds: []int64{0, 5000}, values: []int64{1, 40, 700}},
		cpuTimeMicros:  steps{thresholds: []int64{1000}, values: []int64{900, 35_000}},
		unknown:        Prediction{Demand: api.Resources{CPUMilli: 1200, MemoryBytes: 128 << 20}, Duration: 5 * time.Millisecond, CPUTime: 4 * time.Millisecond},
		offset:         api.Resources{CPUMilli: 200},
		largest:        api.Resources{CPUMilli: 1300, MemoryBytes: 1 << 30},
		largestSize:    8000,
	}
}

func TestLookup(t *testing.T) {
	at := func(cpu int64, d, cpuTime time.Duration) Prediction {
		return Prediction{Demand: api.Resources{CPUMilli: cpu, MemoryBytes: 64 << 20}, Duration: d, CPUTime: cpuTime}
	}
	beyond := func(cpu int64, d, cpuTime time.Duration) Prediction {
		p := at(cpu, d, cpuTime)
		p.Beyond = true
		return p
	}
	for _, tc := range []struct {
		name string
		size int64
		want Prediction
	}{
		{"empty input", 0, at(300, 40*time.Millisecond, 900*time.Microsecond)},
		{"below a threshold", 999, at(300, 40*time.Millisecond, 900*time.Microsecond)},
		{"at a threshold", 1000, at(700, 40*time.Millisecond, 35*time.Millisecond)},
		{"at the last threshold", 5000, at(1300, 700*time.Millisecond, 35*time.Millisecond)},
		{"the largest learned from", 8000, at(1300, 700*time.Millisecond, 35*time.Millisecond)},
		{"larger", 8001, beyond(1300, 700*time.Millisecond, 35*time.Millisecond)},
		{"far above", 1 << 50, beyond(1300, 700*time.Millisecond, 35*time.Millisecond)},
		{"unknown", api.UnknownSize, Prediction{
			Demand: api.Resources{CPUMilli: 1300, MemoryBytes: 128 << 20}, Duration: 5 * time.Millisecond, CPUTime: 4 * time.Millisecond}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, exampleTable().Lookup(tc.size)); diff != "" {
				t.Errorf("Lookup(%d) (-want, +got):\n%s", tc.size, diff)
			}
		})
	}
}

// If no input of a function had a known size, nothing was learned about inputs that have
// one.
func TestWithoutAKnownSizeEachIsBeyond(t *testing.T) {
	table := exampleTable()
	table.largestSize = api.UnknownSize
	for size, want := range map[int64]bool{api.UnknownSize: false, 0: true, 7: true} {
		if got := table.Lookup(size).Beyond; got != want {
			t.Errorf("Lookup(%d).Beyond = %v, want %v", size, got, want)
		}
	}
}

func TestOffsetMakesNoPrediction(t *testing.T) {
	table := exampleTable()
	table.cpuMilli.values[0] = 0
	if got := table.Lookup(1).Demand.CPUMilli; got != 0 {
		t.Errorf("a resource that is not predicted is said to need %d", got)
	}
}

func drawSteps(t *rapid.T, label string) steps {
	thresholds := rapid.SliceOfN(rapid.Int64Range(0, 20), 0, 8).Draw(t, label+" thresholds")
	slices.Sort(thresholds)
	values := rapid.SliceOfN(rapid.Int64Range(0, 9), len(thresholds)+1, len(thresholds)+1).Draw(t, label+" values")
	return steps{thresholds: thresholds, values: values}
}

func drawResources(t *rapid.T, label string) api.Resources {
	return api.Resources{
		CPUMilli:    rapid.Int64Range(0, 9).Draw(t, label+" cpu"),
		MemoryBytes: rapid.Int64Range(0, 9).Draw(t, label+" memory"),
	}
}

// TestLookupIsItsDefinition compares with the definition of a table, evaluated size by size,
// and checks what the offset may do.
func TestLookupIsItsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := &Table{
			cpuMilli:       drawSteps(t, "cpu"),
			memoryBytes:    drawSteps(t, "memory"),
			durationMillis: drawSteps(t, "duration"),
			cpuTimeMicros:  drawSteps(t, "CPU time"),
			unknown:        Prediction{Demand: drawResources(t, "unknown"), CPUTime: time.Duration(rapid.Int64Range(0, 9).Draw(t, "unknown CPU time"))},
			offset:         drawResources(t, "offset"),
			largest:        drawResources(t, "largest"),
			largestSize:    rapid.Int64Range(-1, 22).Draw(t, "largest size"),
		}
		for size := int64(-1); size < 22; size++ {
			raw := table.unknown
			if size >= 0 {
				raw = Prediction{
					Demand:   api.Resources{CPUMilli: countUp(table.cpuMilli, size), MemoryBytes: countUp(table.memoryBytes, size)},
					Duration: time.Duration(countUp(table.durationMillis, size)) * time.Millisecond,
					CPUTime:  time.Duration(countUp(table.cpuTimeMicros, size)) * time.Microsecond,
				}
			}
			got := table.Lookup(size)
			if want := size >= 0 && size > table.largestSize; got.Beyond != want {
				t.Fatalf("beyond at %d: %v, want %v", size, got.Beyond, want)
			}
			if got.Duration != raw.Duration {
				t.Fatalf("duration at %d is %v, want %v", size, got.Duration, raw.Duration)
			}
			if got.CPUTime != raw.CPUTime {
				t.Fatalf("CPU time at %d is %v, want %v", size, got.CPUTime, raw.CPUTime)
			}
			for _, r := range []struct{ raw, got, offset, largest int64 }{
				{raw.Demand.CPUMilli, got.Demand.CPUMilli, table.offset.CPUMilli, table.largest.CPUMilli},
				{raw.Demand.MemoryBytes, got.Demand.MemoryBytes, table.offset.MemoryBytes, table.largest.MemoryBytes},
			} {
				want := r.raw
				if r.raw > 0 && r.raw < r.largest {
					want = r.raw + r.offset
					if want > r.largest {
						want = r.largest
					}
				}
				if r.got != want {
					t.Fatalf("at %d it is %d, want %d of %+v", size, r.got, want, r)
				}
			}
		}
	})
}

// countUp is steps.at without a search.
func countUp(s steps, size int64) int64 {
	reached := 0
	for _, threshold := range s.thresholds {
		if size >= threshold {
			reached++
		}
	}
	return s.values[reached]
}

func TestLookupDoesNotAllocate(t *testing.T) {
	table := exampleTable()
	if n := testing.AllocsPerRun(100, func() { table.Lookup(1234) }); n != 0 {
		t.Errorf("Lookup allocates %v times, want 0", n)
	}
}

func largeTable() *Table {
	thresholds, values := make([]int64, 64), make([]int64, 65)
	for i := range thresholds {
		thresholds[i] = int64(i) * 1000
	}
	for i := range values {
		values[i] = int64(i + 1)
	}
	s := steps{thresholds: thresholds, values: values}
	return &Table{
		cpuMilli: s, memoryBytes: s, durationMillis: s, cpuTimeMicros: s,
		offset: api.Resources{CPUMilli: 1, MemoryBytes: 1}, largest: api.Resources{CPUMilli: 50, MemoryBytes: 50},
	}
}

func BenchmarkLookup(b *testing.B) {
	table := largeTable()
	b.ReportAllocs()
	for size := int64(0); b.Loop(); size = (size + 977) % 70_000 {
		table.Lookup(size)
	}
}

// knowing returns a client that has metrics and knows many functions.
func knowing(t testing.TB, functions int) (*Client, []types.NamespacedName) {
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	c := newMeasuredClient(t, "http://localhost", clock.RealClock{}, provider, zap.NewNop().Sugar())
	names := make([]types.NamespacedName, functions)
	table, now := largeTable(), time.Now()
	for i := range names {
		names[i] = types.NamespacedName{Namespace: "namespace", Name: fmt.Sprintf("function-%05d", i)}
		know(c, names[i], state{table: table, fetched: now, due: now.Add(time.Hour)})
	}
	return c, names
}

func TestPredictDoesNotAllocate(t *testing.T) {
	c, names := knowing(t, 1)
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() { c.Predict(ctx, names[0], 1234) }); n != 0 {
		t.Errorf("Predict allocates %v times, want 0", n)
	}
}

// BenchmarkPredict measures all that a prediction costs the request path: the clock, the
// function map, four look-ups, the offset and the metrics.
func BenchmarkPredict(b *testing.B) {
	c, names := knowing(b, 1000)
	ctx := context.Background()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		c.Predict(ctx, names[i%len(names)], int64(i*977%70_000))
		i++
	}
}

func BenchmarkPredictParallel(b *testing.B) {
	c, names := knowing(b, 1000)
	ctx := context.Background()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			c.Predict(ctx, names[i%len(names)], int64(i*977%70_000))
		}
	})
}
