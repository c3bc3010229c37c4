package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/pool/redistest"
)

// profilesSince returns the names of the nodes that have changed since known, in the order in which
// they are told, and the most that one call tells. It moves known on.
func profilesSince(t *testing.T, r *Redis, known Moments) (names []string, most int) {
	t.Helper()
	changes, err := r.ReadProfiles(redistest.Context(t), known)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		for _, p := range c.Profiles {
			names = append(names, p.Node)
		}
		most = max(most, len(c.Profiles))
		known[c.Redis] = c.Until
	}
	return names, most
}

func TestProfilesOfWhatChanged(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	known := Moments{}
	expect := func(want ...string) {
		t.Helper()
		if names, _ := profilesSince(t, r, known); !slices.Equal(names, want) {
			t.Errorf("profiles of %q are told, want %q", names, want)
		}
	}
	expect() // which loads the library
	lendOnce(t, r, "node-1")
	lendOnce(t, r, "node-2")
	lendOnce(t, r, "node-3")
	expect("node-1", "node-2", "node-3")
	expect()
	if _, err := r.End(ctx, "node-1", Ending{ID: "borrower"}); err != nil {
		t.Fatal(err)
	}
	epochOf(t, r, "node-2")
	if err := r.Renew(ctx, "node-3", "activator-1"); err != nil {
		t.Fatal(err)
	}
	expect("node-1")
	// A Renew of another lease, or a Read, finds what has lapsed.
	r.UseClock(testingclock.NewFakePassiveClock(time.Now().Add(LeaseTTL + time.Second)))
	epochOf(t, r, "node-2")
	if err := r.Renew(ctx, "node-3", "activator-1"); err != nil {
		t.Fatal(err)
	}
	expect("node-2", "node-3")
	r.UseClock(nil)

	// A node's new epoch is told when a call finds it.
	if err := r.calls.Del(ctx, thisLibrary.key("node-1", epochKey)).Err(); err != nil {
		t.Fatal(err)
	}
	expect()
	epochOf(t, r, "node-1")
	expect("node-1")
	// A library that is loaded anew tells of all nodes, once.
	if err := r.calls.FunctionFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	expect()
	lendOnce(t, r, "node-4")
	expect("node-4")
	expect()
}

func TestProfilesOfManyNodes(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	var want []string
	for i := range 2*profilesMost + 1 {
		want = append(want, fmt.Sprint("node-", i))
		lendOnce(t, r, want[i])
	}
	known := Moments{}
	if names, most := profilesSince(t, r, known); !slices.Equal(names, want) || most != profilesMost {
		t.Errorf("%d at once at most: %q", most, names)
	}
	// Nodes that are touched again come last.
	lendOnce(t, r, "node-0")
	if names, _ := profilesSince(t, r, Moments{}); !slices.Equal(names, append(want[1:], want[0])) {
		t.Errorf("after a Begin on %s: %q", want[0], names)
	}
}

// A Redis is asked until it has told everything, or too much, or fails. What was read until then counts.
func TestProfilesAreReadUntilAllIsTold(t *testing.T) {
	broken := errors.New("Redis is away")
	for name, tc := range map[string]struct {
		tells  int64 // how many calls it takes
		breaks int64 // the call that fails
		calls  int
		err    error
	}{
		"at once":        {tells: 1, calls: 1},
		"in three":       {tells: 3, calls: 3},
		"in just enough": {tells: profileCallsMost, calls: profileCallsMost},
		"never":          {tells: 1 << 40, calls: profileCallsMost, err: errMoreProfiles},
		"not at all":     {breaks: 1, calls: 0, err: broken},
		"in part":        {tells: 3, breaks: 3, calls: 2, err: broken},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := untilTold(Moment{change: 10}, func(since Moment) (Changes, error) {
				call := since.change - 9
				if call == tc.breaks {
					return Changes{}, broken
				}
				return Changes{Until: Moment{change: since.change + 1}, More: call < tc.tells}, nil
			})
			if len(all) != tc.calls || !errors.Is(err, tc.err) {
				t.Fatalf("%d calls, %v; want %d, %v", len(all), err, tc.calls, tc.err)
			}
			for i, c := range all {
				if want := int64(11 + i); c.Until.change != want {
					t.Errorf("call %d is until %d, want %d", i, c.Until.change, want)
				}
			}
		})
	}
}

// A master that hangs keeps no other from telling everything.
func TestProfilesWhileAMasterHangs(t *testing.T) {
	addrs := redistest.StartCluster(t)
	r := newRedis(t, strings.Join(addrs, ","))
	const nodes = 6 * profilesMost
	for i := range nodes {
		lendOnce(t, r, fmt.Sprint("node-", i))
	}
	known := Moments{}
	if names, most := profilesSince(t, r, known); len(names) != nodes || most != profilesMost {
		t.Fatalf("%d nodes are told, and %d at once at most", len(names), most)
	}
	if err := newRedis(t, addrs[0]).calls.ClientPause(redistest.Context(t), time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	for range 5 { // which master is asked for the others is left to chance
		ctx, cancel := context.WithTimeout(redistest.Context(t), 500*time.Millisecond)
		changes, err := r.ReadProfiles(ctx, Moments{})
		cancel()
		if err == nil || !strings.Contains(err.Error(), addrs[0]) {
			t.Errorf("while %s hangs: %v", addrs[0], err)
		}
		read, told := map[string]bool{}, map[string]bool{}
		for _, c := range changes {
			for _, p := range c.Profiles {
				read[p.Node] = true
			}
			told[c.Redis] = !c.More
		}
		if len(read) < nodes/2 || len(told) != 2 || !told[addrs[1]] || !told[addrs[2]] {
			t.Errorf("%d nodes are read while one master hangs; told all: %v", len(read), told)
		}
	}
}

// Reading profiles takes no memory that maxmemory bounds.
func TestProfilesWithoutMemory(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	lendOnce(t, r, "node")
	if err := r.calls.ConfigSet(redistest.Context(t), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if names, _ := profilesSince(t, r, Moments{}); len(names) != 1 {
		t.Errorf("profiles of %q, want of the node", names)
	}
}

func TestProfilesOfCluster(t *testing.T) {
	addrs := redistest.StartCluster(t)
	r := newRedis(t, strings.Join(addrs, ","))
	known := Moments{}
	var want []string
	for i := range 12 {
		want = append(want, fmt.Sprintf("node-%02d", i))
		lendOnce(t, r, want[i])
	}
	names, _ := profilesSince(t, r, known)
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("profiles of %q, want %q", names, want)
	}
	if len(known) != len(addrs) {
		t.Errorf("%d Redis tell of profiles, want %d", len(known), len(addrs))
	}
	// A Redis that nobody has called yet has no library.
	fresh := newRedis(t, strings.Join(addrs, ","))
	for _, addr := range addrs {
		if err := newRedis(t, addr).calls.FunctionFlush(redistest.Context(t)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if names, _ := profilesSince(t, fresh, Moments{}); len(names) > 0 {
		t.Errorf("profiles of %q, of which nothing is known any more", names)
	}
}

// A malformed profile, from a Redis that somebody else writes to, is refused with an error that
// says what is wrong.
func TestProfileThatIsNone(t *testing.T) {
	whole := string(packed(1, 1, 2, 4000, 1<<32, 3000, 1<<31, 500, 1, 2000, 100, 5, 6, 7, 8, 1, 3000, 9, 10))
	if p, err := parseProfile("a", whole); err != nil || p.Begun != 2 || len(p.Unused) != 2 || len(p.Domains["a"].Lends) != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	for name, numbers := range map[string]string{
		"cut":            whole[:len(whole)-8],
		"long":           whole + whole[:8],
		"too many steps": string(packed(1, 1, 2, 4000, 1<<32, 3000, 1<<31, 500, 1<<40)),
		"none":           "",
	} {
		if _, err := parseProfile("a", numbers); err == nil || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, reply := range map[string][]any{
		"no node":    {"library", int64(1), int64(0), int64(1), "node"},
		"no numbers": {"library", int64(1), int64(0), int64(1), "node", "", "1"},
		"no moment":  {"library"},
	} {
		if _, err := parseChanges(reply); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// The function does not write, so it may be called where writing is not allowed.
func TestProfilesAreReadOnly(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	lendOnce(t, r, "node")
	cmd := r.calls.FCallRO(redistest.Context(t), thisLibrary.function("profiles"), nil, "", packed(0, 0, 1))
	if err := cmd.Err(); err != nil {
		t.Error(err)
	}
}
