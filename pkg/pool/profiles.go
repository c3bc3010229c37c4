package pool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/api"
)

// MostSteps is the most moments at which the volumes of a Profile change.
const MostSteps = 16

const (
	// profilesMost is the most Profiles that one call returns: other calls wait while they are made.
	profilesMost = 50
	// profileCallsMost bounds the calls that one Redis gets in a row.
	profileCallsMost = 100
)

var errMoreProfiles = errors.New("more has changed than can be read at once")

// Profile is what a node can give now and later, as needed to place requests (LIBRA, section 6).
type Profile struct {
	Node string
	// Heard is when the last heartbeat came; zero when none has. It counts for LeaseTTL.
	Heard time.Time
	Open  bool // whether anything was lent as of that heartbeat
	Begun int  // invocations in flight

	// Capacity and Idle are the last heartbeat's.
	Capacity, Idle api.Resources
	// Unused is the CPU that is predicted to be idle: what was idle at the last heartbeat, minus
	// what invocations use that have begun since, minus what others wait for, plus what invocations
	// free when they end. An invocation counts, until its predicted end, with what it is predicted
	// to use on average.
	Unused []Step

	// Domains has the domains in which something is in the pool or wanted, by name.
	Domains map[string]DomainProfile
}

// DomainProfile is what can be borrowed in a domain.
type DomainProfile struct {
	// Lends is, for each moment, the surplus in the pool that lasts beyond it, up to what may be
	// lent on the node. It does not subtract what other domains want.
	Lends []Step
	// Surplus is all that is in the pool now, and Lacks what is wanted and not borrowed.
	Surplus, Lacks api.Resources
}

// Step is a volume from a moment until that of the next Step. The first covers all time before.
type Step struct {
	From   time.Time // zero for the first
	Volume api.Resources
}

// Changes are the Profiles of one Redis that have changed.
type Changes struct {
	Redis string // the address, as a name; empty when there is only one
	Now   time.Time
	// Profiles may include nodes on which nothing has changed.
	Profiles []Profile
	// Until is the Moment of the last change here, to ask for those after it.
	Until Moment
	More  bool // whether there are more changes already
}

// Moment is a point in the changes of one Redis. The zero value is before all changes.
type Moment struct {
	library string // identifies one load of the library
	change  int64
}

// Moments has, by Changes.Redis, the Moment up to which Profiles are known.
type Moments map[string]Moment

// ReadProfiles returns the Profiles that have changed since, the earliest change of each Redis first.
// It calls each until that has told everything. When some fail, it returns what was read until then
// with the error: no Redis waits for another.
func (r *Redis) ReadProfiles(ctx context.Context, since Moments) ([]Changes, error) {
	cluster, ok := r.calls.(*redis.ClusterClient)
	if !ok {
		return r.readAllProfiles(ctx, r.calls, "", since[""])
	}
	var (
		mu   sync.Mutex
		all  []Changes
		errs []error
	)
	// Which masters there are is asked first. If the node that is asked hangs, those known from before have the other half
	// of the time.
	left := callTimeout
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	asking, cancel := context.WithTimeout(ctx, left/2)
	defer cancel()
	err := cluster.ForEachMaster(asking, func(_ context.Context, client *redis.Client) error {
		name := client.Options().Addr
		changes, err := r.readAllProfiles(ctx, client, name, since[name])
		mu.Lock()
		defer mu.Unlock()
		all, errs = append(all, changes...), append(errs, err)
		return nil
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("reading the profiles of nodes: %w", err))
	}
	return all, errors.Join(errs...)
}

// readAllProfiles returns what was read even when it fails.
func (r *Redis) readAllProfiles(ctx context.Context, client redis.UniversalClient, name string, since Moment) ([]Changes, error) {
	all, err := untilTold(since, func(since Moment) (Changes, error) { return r.readProfiles(ctx, client, name, since) })
	if err != nil {
		if name != "" {
			err = fmt.Errorf("from %s: %w", name, err)
		}
		err = fmt.Errorf("reading the profiles of nodes: %w", err)
	}
	return all, err
}

// untilTold reads until there is nothing more.
func untilTold(since Moment, read func(since Moment) (Changes, error)) (all []Changes, err error) {
	for range profileCallsMost {
		changes, err := read(since)
		if err != nil {
			return all, err
		}
		all, since = append(all, changes), changes.Until
		if !changes.More {
			return all, nil
		}
	}
	return all, errMoreProfiles
}

func (r *Redis) readProfiles(ctx context.Context, client redis.UniversalClient, name string, since Moment) (Changes, error) {
	cmd := client.FCall(ctx, r.library.function("profiles"), nil, since.library, packed(r.nowMillis(), since.change, profilesMost))
	if isMissing(cmd) {
		// It has no node. A client that only reads needs no right to load functions, which others execute.
		return Changes{Redis: name}, nil
	}
	reply, err := cmd.Slice()
	if err != nil {
		return Changes{}, err
	}
	changes, err := parseChanges(reply)
	changes.Redis = name
	return changes, err
}

// parseChanges reads the reply of the function profiles.
func parseChanges(reply []any) (Changes, error) {
	i := &items{left: reply}
	c := Changes{Until: Moment{next[string](i), next[int64](i)}, More: next[int64](i) == 1, Now: time.UnixMilli(next[int64](i))}
	c.Profiles = make([]Profile, 0, len(i.left)/3)
	for i.err == nil && len(i.left) > 0 {
		node, domains, numbers := next[string](i), next[string](i), next[string](i)
		if i.err != nil {
			break
		}
		p, err := parseProfile(domains, numbers)
		if err != nil {
			return Changes{}, fmt.Errorf("parsing the profile of node %s: %w", node, err)
		}
		p.Node = node
		c.Profiles = append(c.Profiles, p)
	}
	return c, i.err
}

// floats reads packed numbers from their start, and notes when there are too few.
type floats struct {
	left  string
	short bool
}

func (f *floats) next() int64 {
	if len(f.left) < 8 {
		f.short = true
		return 0
	}
	n := math.Float64frombits(binary.LittleEndian.Uint64([]byte(f.left[:8])))
	f.left = f.left[8:]
	return int64(n)
}

func (f *floats) resources() api.Resources {
	return api.Resources{CPUMilli: f.next(), MemoryBytes: f.next()}
}

// count reads how many items follow, each of so many numbers.
func (f *floats) count(numbers int) int {
	n := f.next()
	if n < 0 || n > int64(len(f.left)/8/numbers) {
		f.short = true
		return 0
	}
	return int(n)
}

// parseProfile reads what profile_of in lua/5_profiles.lua returns.
func parseProfile(domains, numbers string) (Profile, error) {
	f := &floats{left: numbers}
	var p Profile
	if beat := f.next(); beat > 0 {
		p.Heard = time.UnixMilli(beat)
	}
	p.Open, p.Begun = f.next() == 1, int(f.next())
	p.Capacity, p.Idle = f.resources(), f.resources()
	p.Unused = f.unused()
	if domains != "" {
		p.Domains = make(map[string]DomainProfile, strings.Count(domains, "\n")+1)
		for name := range strings.SplitSeq(domains, "\n") {
			d := DomainProfile{Surplus: f.resources(), Lacks: f.resources()}
			d.Lends = f.lends()
			p.Domains[name] = d
		}
	}
	if f.short || f.left != "" {
		return Profile{}, fmt.Errorf("its %d bytes of numbers do not fit %d domain(s)", len(numbers), len(p.Domains))
	}
	return p, nil
}

// unused reads how much CPU is there now, and how much more there is from later moments on.
func (f *floats) unused() []Step {
	now := f.next()
	steps := make([]Step, f.count(2)+1)
	steps[0].Volume.CPUMilli = max(now, 0)
	for i := 1; i < len(steps); i++ {
		steps[i].From = time.UnixMilli(f.next())
		steps[i].Volume.CPUMilli = max(now+f.next(), 0)
	}
	return steps
}

// lends reads what can be borrowed until which moments, the latest first.
func (f *floats) lends() []Step {
	n := f.count(3)
	steps := make([]Step, n+1)
	for i := n; i > 0; i-- {
		steps[i].From = time.UnixMilli(f.next())
		steps[i-1].Volume = f.resources()
	}
	return steps
}
