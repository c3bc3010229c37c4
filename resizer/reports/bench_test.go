package reports

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/report"
)

// BenchmarkWindow is what 10,000 revisions cost the leader each time that it makes reports: all had
// requests in every minute through each of four activators, and a hundred agents tell of a hundred each.
// redis-B is what Redis keeps of them.
func BenchmarkWindow(b *testing.B) {
	const revisions, activators, agents = 10_000, 4, 100
	random := rand.New(rand.NewPCG(1, 2))
	slots := slotsOf(time.Unix(1_000_000_000, 0))
	read, bytes := map[report.Slot]map[string]string{}, 0
	put := func(slot report.Slot, writer string, first, n int, fields ...report.Field) {
		record := report.Record{}
		for i := first; i < first+n; i++ {
			var s report.Sums
			for _, f := range fields {
				s[f] = 1 + random.Int64N(1e9)
			}
			record.Add(types.NamespacedName{Namespace: fmt.Sprintf("shop-%d", i%100), Name: fmt.Sprintf("thumbnails-%05d", i)}, &s)
		}
		encoded, err := report.Encode(record)
		if err != nil {
			b.Fatal(err)
		}
		read[slot][writer] = string(encoded)
		bytes += len(writer) + len(encoded)
	}
	for _, slot := range slots {
		read[slot] = map[string]string{}
		for a := range activators {
			put(slot, fmt.Sprint("activator-", a), 0, revisions,
				report.Requests, report.CouldLendCPU, report.CouldLendMemory, report.WouldBorrowCPU, report.FoundLearned, report.Mode,
				report.Compared, report.LogTime, report.LogTimeBefore)
		}
		for a := range agents {
			put(slot, fmt.Sprint("agent-", a), a*revisions/agents, revisions/agents, report.LentCPU, report.BorrowedCPU)
		}
	}
	last := slots[len(slots)-1]
	b.Run("leader=new", func(b *testing.B) {
		for b.Loop() {
			w := newWindow()
			if err := w.take(read); err != nil {
				b.Fatal(err)
			}
			if got := len(w.sum(slots[0])); got != revisions {
				b.Fatalf("%d functions", got)
			}
		}
		b.ReportMetric(float64(bytes), "redis-B")
	})
	// Only the current slot has changed.
	b.Run("leader=old", func(b *testing.B) {
		w := newWindow()
		if err := w.take(read); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			w.slots[last] = slot{}
			if err := w.take(read); err != nil {
				b.Fatal(err)
			}
			w.sum(slots[0])
		}
	})
}
