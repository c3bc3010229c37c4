package reports

import (
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"libra.dev/libra/pkg/report"
)

// window has what all parts counted in the slots of the last minutes.
type window struct {
	seed  maphash.Seed
	slots map[report.Slot]slot
}

// slot is what was counted in one slot. It is not decoded again while it is unchanged.
type slot struct {
	digest uint64
	record report.Record
}

func newWindow() *window { return &window{seed: maphash.MakeSeed(), slots: map[report.Slot]slot{}} }

// slotsOf returns the slots of the window that ends now, the oldest first.
func slotsOf(now time.Time) []report.Slot {
	last := report.SlotOf(now)
	slots := make([]report.Slot, report.Slots)
	for i := range slots {
		slots[i] = last - report.Slot(report.Slots-1-i)
	}
	return slots
}

// take replaces the slots by what was read, by slot and writer. It leaves out writers whose counts cannot
// be decoded, and the error says which.
func (w *window) take(read map[report.Slot]map[string]string) error {
	var errs []error
	for s := range w.slots {
		if _, ok := read[s]; !ok {
			delete(w.slots, s)
		}
	}
	for s, writers := range read {
		digest := w.digest(writers)
		if known, ok := w.slots[s]; ok && known.digest == digest {
			continue
		}
		taken := slot{digest, report.Record{}}
		for writer, encoded := range writers {
			if err := report.Decode([]byte(encoded), taken.record); err != nil {
				errs = append(errs, fmt.Errorf("leaving out the counts of %.64q: %w", writer, err))
			}
		}
		w.slots[s] = taken
	}
	return errors.Join(errs...)
}

func (w *window) digest(writers map[string]string) uint64 {
	var h maphash.Hash
	h.SetSeed(w.seed)
	for _, writer := range slices.Sorted(maps.Keys(writers)) {
		maphash.WriteComparable(&h, writer)
		maphash.WriteComparable(&h, writers[writer])
	}
	return h.Sum64()
}

// sum returns what was counted in the slots from one on.
func (w *window) sum(from report.Slot) report.Record {
	all := report.Record{}
	for at, s := range w.slots {
		if at < from {
			continue
		}
		for function, sums := range s.record {
			all.Add(function, sums)
		}
	}
	return all
}
