package scheduler

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/pool"
)

const (
	askEvery    = time.Second
	askJitter   = askEvery / 10
	mostBackoff = 10 * time.Second
	callTimeout = time.Second
	// callsMost bounds the calls made in a row for observations, each for up to observationsMost.
	callsMost        = 100
	observationsMost = 500

	// staleAfter is the age beyond which nothing counts as known.
	staleAfter = 5 * time.Second
)

var errMore = errors.New("there are more observations than can be read at once")

// source tells what nodes lend and what functions need. pool.Redis implements it.
type source interface {
	ReadProfiles(ctx context.Context, since pool.Moments) ([]pool.Changes, error)
	ReadObservations(ctx context.Context, after string, most int) (pool.Observations, error)
}

// follower follows a source.
type follower struct {
	source  source
	clock   clock.Clock
	metrics *metrics

	leanings leanings
	picture  atomic.Pointer[picture]

	// Only run uses these.
	means   means
	moments pool.Moments
	heard   string // the last observation that was read
	failing bool
}

// run follows until ctx is done.
func (f *follower) run(ctx context.Context) {
	pace := placement.Pace{Every: askEvery, Jitter: askJitter, MostBackoff: mostBackoff}
	pace.Repeat(ctx, f.clock, f.ask, func(err error, _ time.Duration) { f.say(ctx, err) })
}

// ask takes in what is new, and says whether any Redis told what nodes lend.
func (f *follower) ask(ctx context.Context) (told bool, err error) {
	told, err = f.askProfiles(ctx)
	if told {
		f.picture.Store(f.means.sample(f.clock.Now()))
	}
	return told, errors.Join(err, f.askObservations(ctx))
}

func (f *follower) askProfiles(ctx context.Context) (told bool, err error) {
	if f.moments == nil {
		f.moments = pool.Moments{}
	}
	asked := f.clock.Now()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all, err := f.source.ReadProfiles(ctx, f.moments)
	for _, changes := range all {
		f.means.hear(changes, asked)
		f.moments[changes.Redis] = changes.Until
	}
	return len(all) > 0, err
}

func (f *follower) askObservations(ctx context.Context) error {
	for range callsMost {
		callCtx, cancel := context.WithTimeout(ctx, callTimeout)
		read, err := f.source.ReadObservations(callCtx, f.heard, observationsMost)
		cancel()
		f.heard = read.Until
		for i := range read.All {
			f.leanings.hear(&read.All[i])
		}
		f.metrics.skipped.Add(ctx, int64(read.Skipped))
		if err != nil || !read.More {
			return err
		}
	}
	return errMore
}

// say logs an outage once when it begins, and once when it is over.
func (f *follower) say(ctx context.Context, err error) {
	if err != nil {
		f.metrics.failures.Add(ctx, 1)
	}
	if failing := err != nil; failing != f.failing {
		f.failing = failing
		if failing {
			klog.FromContext(ctx).Error(err, "Failed to read what nodes lend or functions need; pods are placed by what was read last, or without it once it is too old. Retrying without further logs")
		} else {
			klog.FromContext(ctx).Info("Resumed reading what nodes lend and functions need")
		}
	}
}

// now returns what is known, or nil if that is too old.
func (f *follower) now() *picture {
	p := f.picture.Load()
	if p == nil || f.clock.Since(p.at) > staleAfter {
		return nil
	}
	return p
}
