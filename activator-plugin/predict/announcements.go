package predict

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/redisconn"
)

const (
	announcementsChannel = "libra:predictor:announcements"
	announcementVersion  = 1

	redisTimeout = time.Second
	// longestSilence is how long nothing may be heard before Redis is pinged, and how long
	// it then has to answer before it counts as gone.
	longestSilence = 10 * time.Second
	minReconnect   = 100 * time.Millisecond
	maxReconnect   = 5 * time.Second
)

// announcement is what the predictor publishes, at most every 100 ms.
type announcement struct {
	V         int             `json:"v"`
	Functions json.RawMessage `json:"functions"` // []functionChange
}

type functionChange struct {
	Function string  `json:"function"` // namespace/revision
	Version  string  `json:"version"`  // empty when the function was dropped
	Offset   []int64 `json:"offset"`   // cpu_milli, memory_bytes
	Largest  []int64 `json:"largest"`  // likewise
}

// Run follows the predictor's announcements until ctx is done. A change that it misses
// while Redis is away is seen when the table is fetched again.
func (c *Client) Run(ctx context.Context) {
	if c.redis.IsZero() {
		return
	}
	client := c.redis.NewClient(redisconn.Options{Connections: 1, Timeout: redisTimeout})
	defer client.Close()

	delay, away := minReconnect, false
	for ctx.Err() == nil {
		connected, err := c.listen(ctx, client)
		if ctx.Err() != nil {
			return
		}
		if connected {
			delay, away = minReconnect, false
		}
		if !away {
			c.logger.Warnw("Not receiving the predictor's announcements; reconnecting without further logs", zap.Error(err))
			away = true
		}
		timer := c.clock.NewTimer(delay)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
		delay = min(2*delay, maxReconnect)
	}
}

// listen receives announcements over one connection until it fails or ctx is done.
func (c *Client) listen(ctx context.Context, client redis.UniversalClient) (connected bool, err error) {
	subscription := client.Subscribe(ctx, announcementsChannel)
	defer subscription.Close()
	defer c.hearing.Store(nil)
	// go-redis does not interrupt a read when its context ends.
	defer context.AfterFunc(ctx, func() { subscription.Close() })()

	asked := false
	for {
		heard, err := subscription.ReceiveTimeout(ctx, c.silence)
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() && !asked {
			asked = true
			err = subscription.Ping(ctx)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return connected, fmt.Errorf("channel %s: %w", announcementsChannel, err)
		}
		asked = false
		switch heard := heard.(type) {
		case *redis.Subscription:
			// Earlier announcements may have been missed.
			connected = true
			now := c.clock.Now()
			c.hearing.Store(&now)
			c.allAreDue()
			c.logger.Infow("Receiving the predictor's announcements", "channel", announcementsChannel)
		case *redis.Message:
			c.hear(heard.Payload)
		}
	}
}

// hear applies an announcement.
func (c *Client) hear(payload string) {
	var a announcement
	if err := json.Unmarshal([]byte(payload), &a); err != nil {
		c.refuse(announcementMalformed, err)
		return
	}
	if a.V != announcementVersion {
		c.refuse(announcementUnknownVersion, fmt.Errorf("v is %d, want %d", a.V, announcementVersion))
		return
	}
	// Another version may have another form, so functions is decoded only now.
	var changes []functionChange
	if err := json.Unmarshal(a.Functions, &changes); err != nil {
		c.refuse(announcementMalformed, err)
		return
	}
	for _, change := range changes {
		result, err := c.follow(change)
		if err != nil {
			c.refuse(announcementMalformed, fmt.Errorf("function %q: %w", change.Function, err))
			continue
		}
		c.metrics.announced(result)
	}
}

func (c *Client) refuse(result string, err error) {
	c.metrics.announced(result)
	c.logger.Debugw("Skipping one of the predictor's announcements", "result", result, zap.Error(err))
}

// follow makes a function due if its version changed, and fetches its table if the
// function is in use. Until the table of that version arrives, the one in hand is used
// with the greater of the two offsets, which raises answers up to the greater of the two
// largest.
func (c *Client) follow(change functionChange) (result string, err error) {
	namespace, revision, ok := strings.Cut(change.Function, "/")
	if !ok || namespace == "" || revision == "" {
		return "", errors.New("function is not of the form namespace/revision")
	}
	name := types.NamespacedName{Namespace: namespace, Name: revision}
	f := c.find(name)
	if change.Version == "" {
		if f == nil {
			return announcementOther, nil
		}
		f.drop(c.clock.Now())
		return announcementApplied, nil
	}
	version, err := parseVersion(change.Version)
	if err != nil {
		return "", err
	}
	heard := announced{version: version}
	if heard.offset, err = parseResources("offset", change.Offset); err != nil {
		return "", err
	}
	if heard.largest, err = parseResources("largest", change.Largest); err != nil {
		return "", err
	}
	if f == nil {
		return announcementOther, nil
	}
	now := c.clock.Now()
	result = f.follow(now, heard)
	if result == announcementApplied && f.unused(now) <= refreshAfter {
		c.prefetch(name, f, now)
	}
	return result, nil
}

// prefetch begins a fetch that no request has asked for. It leaves slots to requests that
// wait.
func (c *Client) prefetch(name types.NamespacedName, f *function, now time.Time) {
	if len(c.slots) >= maxPrefetches {
		c.metrics.skippedAt(limitFetches)
		return
	}
	// Announcements may still arrive after Close.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fetchCtx.Err() == nil {
		c.refresh(context.Background(), name, f, api.UnknownSize, now)
	}
}

func (f *function) follow(now time.Time, heard announced) (result string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.announced = heard
	s := *f.state.Load()
	if s.table != nil && s.table.Version == heard.version {
		return announcementKnown
	}
	if s.table != nil && s.table.Version < heard.version {
		s.table = s.table.withOffsetOf(heard)
	}
	s.lags = 0
	f.mark(now, s)
	return announcementApplied
}

// drop forgets the table of a function that the predictor has dropped.
func (f *function) drop(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.announced = announced{}
	f.marks++
	f.state.Store(&state{fetched: now, due: now.Add(emptyRetry)})
}

// mark makes the function due, even while a fetch is under way, because that may have
// been answered earlier. It must be called with f.mu held.
func (f *function) mark(now time.Time, s state) {
	f.marks++
	s.due, s.same = now, 0
	f.state.Store(&s)
}

func (c *Client) allAreDue() {
	now := c.clock.Now()
	c.functions.Range(func(_, known any) bool {
		f := known.(*function)
		f.mu.Lock()
		f.mark(now, *f.state.Load())
		f.mu.Unlock()
		return true
	})
}

// withOffsetOf returns t with an offset that is enough for t and for the announced
// version. An offset belongs to the table of its version: if the offset shrank, that
// table may have risen, and t with the smaller offset would predict too little.
func (t *Table) withOffsetOf(heard announced) *Table {
	changed := *t
	changed.offset = t.offset.Max(heard.offset)
	changed.largest = t.largest.Max(heard.largest)
	return &changed
}
