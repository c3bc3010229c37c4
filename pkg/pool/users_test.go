package pool

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	testingclock "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/report"
)

// as returns the pool with a user's credentials.
func as(t *testing.T, s *redistest.Secured, user string) *Redis {
	t.Helper()
	r := NewRedis(s.As(t, user))
	t.Cleanup(func() { r.Close() })
	return r
}

// loadOld leaves an old library, for the pool to delete.
func loadOld(ctx context.Context, t *testing.T, s *redistest.Secured) {
	t.Helper()
	old := "#!lua name=libra1\nredis.register_function('libra1_begin', function() return 1 end)"
	if err := s.Admin.FunctionLoad(ctx, old).Err(); err != nil {
		t.Fatal(err)
	}
}

// lapse leaves loans on a node whose leases have expired by r's clock, which stands still from
// then on.
func lapse(t *testing.T, s *redistest.Secured, r *Redis, node string) {
	t.Helper()
	lender, now := as(t, s, "admin"), time.Now()
	lender.UseClock(testingclock.NewFakePassiveClock(now))
	lendOnce(t, lender, node)
	r.UseClock(testingclock.NewFakePassiveClock(now.Add(LeaseTTL + time.Second)))
}

func TestRightsOfTheActivator(t *testing.T) {
	s := redistest.StartSecured(t)
	r := as(t, s, "activator")
	s.CheckRights(t, "activator", 0, func(ctx context.Context) error {
		loadOld(ctx, t, s)
		if err := r.Renew(ctx, "node", "activator-1"); err != nil {
			return err
		}
		openNode(t, as(t, s, "admin"), "node", "default/donor", "default/borrower", "default/next")
		for _, id := range []string{"donor", "borrower"} {
			inv := donor(id)
			if id == "borrower" {
				inv = borrower(id)
			}
			if _, err := r.Begin(ctx, "node", inv); err != nil {
				return err
			}
		}
		// The End stands, and the Begin after it looks for it.
		if _, err := r.End(ctx, "node", Ending{ID: "donor"}); err != nil {
			return err
		}
		ranked := donor("next")
		ranked.Ranked = true
		if _, _, err := r.BeginAfter(ctx, "node", []Ending{{ID: "borrower"}}, ranked); err != nil {
			return err
		}
		changes, err := r.ReadProfiles(ctx, nil)
		if err == nil && (len(changes) != 1 || len(changes[0].Profiles) != 1) {
			err = fmt.Errorf("it reads profiles %+v, want one", changes)
		}
		return err
	})
}

func TestRightsOfTheController(t *testing.T) {
	s := redistest.StartSecured(t)
	t.Run("pools", func(t *testing.T) {
		s.CheckRights(t, "controller", 0, func(ctx context.Context) error {
			r := as(t, s, "controller")
			loadOld(ctx, t, s)
			if _, err := r.Read(ctx, "node"); err != nil {
				return err
			}
			lendOnce(t, as(t, s, "admin"), "lending")
			if _, err := r.Read(ctx, "lending"); err != nil {
				return err
			}
			lapse(t, s, r, "lapsed")
			_, err := r.Read(ctx, "lapsed")
			return err
		})
	})
	t.Run("changes of memory", func(t *testing.T) {
		s.CheckRights(t, "controller", 1, func(ctx context.Context) error {
			follower := as(t, s, "controller").FollowMemory()
			defer follower.Close() //nolint:errcheck // the test ends
			if node, err := follower.Next(ctx); err != nil || node != "" {
				return fmt.Errorf("it begins with %q: %w", node, err)
			}
			lendOnce(t, as(t, s, "admin"), "node")
			if node, err := follower.Next(ctx); err != nil || node != "node" {
				return fmt.Errorf("it hears of %q: %w", node, err)
			}
			// Nothing happens for so long that it checks its connection.
			ctx, cancel := context.WithTimeout(ctx, followSlice+followSlice/2)
			defer cancel()
			if _, err := follower.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("it hears when nothing happens: %w", err)
			}
			return nil
		})
	})
}

func TestRightsOfTheAgent(t *testing.T) {
	s := redistest.StartSecured(t)
	t.Run("pools", func(t *testing.T) {
		s.CheckRights(t, "agent", 0, func(ctx context.Context) error {
			r := as(t, s, "agent")
			loadOld(ctx, t, s)
			if _, err := r.Heartbeat(ctx, "node", Heartbeat{Agent: "agent-1", Lendable: unlimited}); err != nil {
				return err
			}
			lendOnce(t, as(t, s, "admin"), "lending")
			if revoked, err := r.Safeguard(ctx, "lending", "default/donor", false); err != nil || revoked == 0 {
				return fmt.Errorf("a safeguard revokes %d: %w", revoked, err)
			}
			lapse(t, s, r, "lapsed")
			_, err := r.Read(ctx, "lapsed")
			return err
		})
	})
	t.Run("events", func(t *testing.T) {
		s.CheckRights(t, "agent", 1, func(ctx context.Context) error {
			watcher := as(t, s, "agent").Watch("node")
			if _, err := watcher.Next(ctx); err != nil {
				return err
			}
			lendOnce(t, as(t, s, "admin"), "node")
			if events, err := watcher.Next(ctx); err != nil || !events.Changed {
				return fmt.Errorf("it is told of a loan by %+v: %w", events, err)
			}
			return nil
		})
	})
	t.Run("observations", func(t *testing.T) {
		s.CheckRights(t, "agent", 2, func(ctx context.Context) error {
			return as(t, s, "agent").Observe(ctx, api.Observation{})
		})
	})
}

// The activator and the agent write what they counted, and the controller reads it.
func TestRightsToReport(t *testing.T) {
	s := redistest.StartSecured(t)
	for user, group := range map[string]int{"activator": 3, "agent": 3} {
		t.Run(user, func(t *testing.T) {
			s.CheckRights(t, user, group, func(ctx context.Context) error {
				return as(t, s, user).PutReports(ctx, "writer", map[report.Slot][]byte{1: []byte("record")})
			})
			if _, err := as(t, s, user).ReadReports(redistest.Context(t), []report.Slot{1}); !redis.HasErrorPrefix(errors.Unwrap(err), "NOPERM") {
				t.Errorf("it may read what others counted: %v", err)
			}
		})
	}
	t.Run("controller", func(t *testing.T) {
		s.CheckRights(t, "controller", 2, func(ctx context.Context) error {
			if err := as(t, s, "admin").PutReports(ctx, "writer", map[report.Slot][]byte{1: []byte("record")}); err != nil {
				return err
			}
			read, err := as(t, s, "controller").ReadReports(ctx, []report.Slot{1})
			if err == nil && read[1]["writer"] != "record" {
				err = fmt.Errorf("it reads %v", read)
			}
			return err
		})
		if err := as(t, s, "controller").PutReports(redistest.Context(t), "writer", map[report.Slot][]byte{1: nil}); err == nil {
			t.Error("it may say what others counted")
		}
	})
}

func TestRightsOfTheScheduler(t *testing.T) {
	s := redistest.StartSecured(t)
	t.Run("profiles", func(t *testing.T) {
		s.CheckRights(t, "scheduler", 0, func(ctx context.Context) error {
			r := as(t, s, "scheduler")
			if changes, err := r.ReadProfiles(ctx, nil); err != nil || len(changes) != 1 || len(changes[0].Profiles) > 0 {
				return fmt.Errorf("where nobody has loaded the functions, it reads %+v: %w", changes, err)
			}
			// A Redis that starts again has the functions, and nobody may have called one.
			if err := s.Admin.FunctionLoad(ctx, thisLibrary.source()).Err(); err != nil {
				return err
			}
			if _, err := r.ReadProfiles(ctx, nil); err != nil {
				return err
			}
			lendOnce(t, as(t, s, "admin"), "node")
			changes, err := r.ReadProfiles(ctx, nil)
			if err == nil && (len(changes) != 1 || len(changes[0].Profiles) != 1) {
				err = fmt.Errorf("it reads profiles %+v, want one", changes)
			}
			return err
		})
	})
	t.Run("observations", func(t *testing.T) {
		s.CheckRights(t, "scheduler", 1, func(ctx context.Context) error {
			_, err := as(t, s, "scheduler").ReadObservations(ctx, "", 10)
			return err
		})
	})
}

// Each user can use only its own streams, keys and channels.
func TestUsersHaveNoOthersKeys(t *testing.T) {
	s := redistest.StartSecured(t)
	lendOnce(t, as(t, s, "admin"), "node")
	ctx := redistest.Context(t)
	for user, refused := range map[string][][]any{
		"activator":  {{"GET", "libra:predictor:{state}:lock"}, {"XADD", api.ObservationsStream, "*", "v", "1"}, {"EVAL", "return 1", 1, thisLibrary.key("node", epochKey)}, {"XREAD", "STREAMS", api.ObservationsStream, "0"}, {"SUBSCRIBE", memoryChannel}},
		"controller": {{"GET", "libra:duplicator:x"}, {"XREAD", "STREAMS", thisLibrary.key("node", intentsKey), "0"}, {"XADD", api.ObservationsStream, "*", "v", "1"}, {"EVAL", "return 1", 0}},
		"agent":      {{"XREAD", "STREAMS", api.ObservationsStream, "0"}, {"GET", "libra:duplicator:x"}, {"PUBLISH", "libra:predictor:announcements", "x"}, {"EVAL", "return 1", 0}},
		"scheduler":  {{"GET", thisLibrary.key("node", epochKey)}, {"FCALL", thisLibrary.function("read"), 1, thisLibrary.key("node", epochKey)}, {"XADD", api.ObservationsStream, "*", "v", "1"}, {"EVAL", "return 1", 0}, {"FUNCTION", "LOAD", "REPLACE", thisLibrary.source()}, {"FUNCTION", "DELETE", thisLibrary.name()}},
		"predictor":  {{"GET", thisLibrary.key("node", epochKey)}, {"FCALL", thisLibrary.function("read"), 1, thisLibrary.key("node", epochKey)}, {"PUBLISH", memoryChannel, "node"}, {"EVAL", "return 1", 1, thisLibrary.key("node", epochKey)}, {"XADD", api.ObservationsStream, "*", "v", "1"}},
	} {
		refused = append(refused, []any{"KEYS", "*"}, []any{"FLUSHALL"}, []any{"CONFIG", "GET", "*"}, []any{"ACL", "LIST"}, []any{"SCAN", "0"}, []any{"GET", "others"}, []any{"CLIENT", "LIST"}, []any{"SHUTDOWN"})
		r := as(t, s, user)
		for _, command := range refused {
			if err := r.calls.Do(ctx, command...).Err(); err == nil || !redis.HasErrorPrefix(err, "NOPERM") {
				t.Errorf("%s may %v: %v", user, command, err)
			}
		}
	}
}
