package predict

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/api"
)

func exampleTable() *Table {
	return &Table{
		cpuMilli:       steps{thresholds: []int64{1000, 5000}, values: []int64{100, 500, 1200}},
		memoryBytes:    steps{values: []int64{64 << 20}},
		durationMillis: steps{thresholds: []int64{0, 5000}, values: []int64{1, 40, 700}},
		unknown:        Prediction{Demand: api.Resources{CPUMilli: 1200, MemoryBytes: 128 << 20}, Duration: 5 * time.Millisecond},
	}
}

func TestLookup(t *testing.T) {
	at := func(cpu int64, d time.Duration) Prediction {
		return Prediction{Demand: api.Resources{CPUMilli: cpu, MemoryBytes: 64 << 20}, Duration: d}
	}
	for _, tc := range []struct {
		name string
		size int64
		want Prediction
	}{
		{"empty input", 0, at(100, 40*time.Millisecond)},
		{"below a threshold", 999, at(100, 40*time.Millisecond)},
		{"at a threshold", 1000, at(500, 40*time.Millisecond)},
		{"at the last threshold", 5000, at(1200, 700*time.Millisecond)},
		{"far above", 1 << 50, at(1200, 700*time.Millisecond)},
		{"unknown", api.UnknownSize, exampleTable().unknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, exampleTable().Lookup(tc.size)); diff != "" {
				t.Errorf("Lookup(%d) (-want, +got):\n%s", tc.size, diff)
			}
		})
	}
}

func TestLookupDoesNotAllocate(t *testing.T) {
	table := exampleTable()
	if n := testing.AllocsPerRun(100, func() { table.Lookup(1234) }); n != 0 {
		t.Errorf("Lookup allocates %v times, want 0", n)
	}
}

func BenchmarkLookup(b *testing.B) {
	thresholds, values := make([]int64, 64), make([]int64, 65)
	for i := range thresholds {
		thresholds[i] = int64(i) * 1000
	}
	s := steps{thresholds: thresholds, values: values}
	table := &Table{cpuMilli: s, memoryBytes: s, durationMillis: s}
	b.ReportAllocs()
	for size := int64(0); b.Loop(); size = (size + 977) % 70_000 {
		table.Lookup(size)
	}
}
