package report

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

const (
	// sendEvery is how often a part sends what it has counted, if anything is new.
	sendEvery = 5 * time.Second
	// sendTimeout bounds one attempt. Whatever fails is sent with the next.
	sendTimeout = 2 * time.Second
)

// Store keeps what the parts have counted.
type Store interface {
	// PutReports replaces what a writer has counted in slots.
	PutReports(ctx context.Context, writer string, encoded map[Slot][]byte) error
}

// Sender sends what a part counts. Its unexported fields are ready at their zero values.
type Sender struct {
	Clock clock.WithTicker
	Store Store
	// Writer names this run of the part, unlike every other, even of the same pod before a restart.
	Writer string
	// Drain returns what was counted since the last call.
	Drain func() Record
	// OnError is called when sending begins to fail, and with nil when it succeeds again. It may be nil.
	OnError func(error)

	slots   map[Slot]Record
	unsent  map[Slot]bool
	failing bool
}

// Run sends at intervals until ctx is done, and then once more.
func (s *Sender) Run(ctx context.Context) {
	ticker := s.Clock.NewTicker(sendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
			s.send(ctx)
		case <-ctx.Done():
			s.send(context.WithoutCancel(ctx))
			return
		}
	}
}

// send adds what was counted to the current slot, and sends the slots that have changed since they
// were sent.
func (s *Sender) send(ctx context.Context) {
	now := SlotOf(s.Clock.Now())
	if s.slots == nil {
		s.slots, s.unsent = map[Slot]Record{}, map[Slot]bool{}
	}
	for function, sums := range s.Drain() {
		if s.slots[now] == nil {
			s.slots[now] = Record{}
		}
		if s.slots[now][function] == nil && len(s.slots[now]) >= MaxFunctions {
			continue
		}
		s.slots[now].Add(function, sums)
		s.unsent[now] = true
	}
	for slot := range s.slots {
		if slot <= now-Slots || slot < now && !s.unsent[slot] {
			delete(s.slots, slot)
			delete(s.unsent, slot)
		}
	}
	if len(s.unsent) == 0 {
		return
	}
	err := s.put(ctx)
	if err == nil {
		clear(s.unsent)
	}
	if failing := err != nil; failing != s.failing {
		s.failing = failing
		if s.OnError != nil {
			s.OnError(err)
		}
	}
}

func (s *Sender) put(ctx context.Context) error {
	encoded := make(map[Slot][]byte, len(s.unsent))
	for slot := range s.unsent {
		var err error
		if encoded[slot], err = Encode(s.slots[slot]); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return s.Store.PutReports(ctx, s.Writer, encoded)
}
