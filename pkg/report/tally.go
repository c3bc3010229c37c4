package report

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Tally counts for a Sender where few goroutines count. It is safe for concurrent use. The zero
// value is ready, and a nil one counts nothing.
type Tally struct {
	mu     sync.Mutex
	record Record
}

// Add adds to the Sums of a function.
func (t *Tally) Add(function types.NamespacedName, s *Sums) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.record == nil {
		t.record = Record{}
	}
	if t.record[function] == nil && len(t.record) >= MaxFunctions {
		return
	}
	t.record.Add(function, s)
}

// Drain returns what was added since the last call.
func (t *Tally) Drain() Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	record := t.record
	t.record = nil
	return record
}
