// Package duplicator replays scaled copies of a function's real inputs against a copy of its revision, so that its
// demand is learned before live requests of all sizes have arrived. It does so only for functions whose owners ask
// for it.
package duplicator

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	servingclient "knative.dev/serving/pkg/client/clientset/versioned"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/redisconn"
)

const (
	// duplicationMost bounds a duplication without the removal. It leaves time for the copy and for every replay to take
	// their longest.
	duplicationMost = 9 * time.Minute
	readyWithin     = 2 * time.Minute // until the copy is made and ready
	replayWithin    = 30 * time.Second
	removeWithin    = 30 * time.Second
	askWithin       = 2 * time.Second // the API server
	pollEvery       = time.Second
	lookEvery       = 5 * time.Second // for inputs that are due
	sweepEvery      = 2 * time.Minute
	// leftBehindAfter exceeds duplicationMost and removeWithin together.
	leftBehindAfter = 15 * time.Minute

	lockFor    = 30 * time.Second
	renewEvery = 10 * time.Second
	doneFor    = 30 * 24 * time.Hour // in Redis, from when it was last asked about
	failedFor  = 24 * time.Hour      // in Redis
	settledFor = 24 * time.Hour      // until this activator asks Redis again
	retryAfter = 10 * time.Minute    // if another activator was at it, or Redis did not answer
)

var (
	errStopped = errors.New("the activator is stopping")
	errNotHeld = errors.New("another activator may be duplicating the same inputs")
	// errUnwanted says that the function's owner, or the cluster's, wants no more replays.
	errUnwanted = errors.New("the inputs are not to be duplicated any more")
)

// Options are a Duplicator's collaborators and settings.
type Options struct {
	Clock         clock.WithTicker
	Logger        *zap.SugaredLogger
	MeterProvider metric.MeterProvider
	// Events records on a revision how its duplication goes.
	Events  record.EventRecorder
	Serving servingclient.Interface
	Redis   redisconn.Server
	// Owner names this run of the activator, unlike every other.
	Owner string
	// Activator is the URL at which this activator serves HTTP.
	Activator *url.URL
	// Largest has the limits of a copy, where the revision's are not larger.
	Largest api.Resources
	// Stopped says whether Libra is to change nothing for a namespace's functions. It must not block.
	Stopped func(namespace string) bool
}

// Duplicator keeps inputs in its Handler and replays them in Run.
type Duplicator struct {
	clock    clock.WithTicker
	logger   *zap.SugaredLogger
	metrics  *metrics
	events   record.EventRecorder
	serving  servingclient.Interface
	locks    locks
	replayer *replayer
	largest  api.Resources
	stopped  func(namespace string) bool
	revision func(ctx context.Context, namespace, name string) (*v1.Revision, error)
	inputs   *inputs
}

// New returns a Duplicator, which the caller runs and closes after that.
func New(o Options) (*Duplicator, error) {
	m, err := newMetrics(o.MeterProvider)
	if err != nil {
		return nil, err
	}
	return &Duplicator{
		clock:    o.Clock,
		logger:   o.Logger.Named("duplicator"),
		metrics:  m,
		events:   o.Events,
		serving:  o.Serving,
		locks:    newRedisLocks(o.Redis, o.Owner),
		replayer: newReplayer(o.Activator),
		largest:  o.Largest,
		stopped:  o.Stopped,
		revision: func(ctx context.Context, namespace, name string) (*v1.Revision, error) {
			return o.Serving.ServingV1().Revisions(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		inputs: newInputs(),
	}, nil
}

// Close releases what New made. Run must have returned.
func (d *Duplicator) Close() error {
	d.replayer.close()
	return d.locks.close()
}

// Run duplicates the inputs of one revision at a time until ctx is done. Before it returns, it removes the copy at
// hand.
func (d *Duplicator) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		d.every(ctx, sweepEvery, nil, func() { d.sweep(ctx) })
	})
	wg.Go(func() {
		// In a goroutine of its own, because a duplication takes minutes.
		d.every(ctx, lookEvery, d.inputs.asked, func() {
			for _, k := range d.inputs.toAsk() {
				d.ask(ctx, k)
			}
		})
	})
	wg.Go(func() {
		d.every(ctx, lookEvery, d.inputs.full, func() {
			for ctx.Err() == nil {
				j, ok := d.inputs.take(d.clock.Now())
				if !ok {
					return
				}
				d.handle(ctx, j)
			}
		})
	})
	wg.Wait()
}

// every calls do at once, after each interval, and when woken.
func (d *Duplicator) every(ctx context.Context, interval time.Duration, woken <-chan struct{}, do func()) {
	ticker := d.clock.NewTicker(interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		do()
		select {
		case <-ctx.Done():
		case <-ticker.C():
		case <-woken:
		}
	}
}

// ask has the inputs of a revision kept, unless Redis says that they would be of no use or does not answer.
func (d *Duplicator) ask(ctx context.Context, k key) {
	v, err := d.locks.look(ctx, k)
	s := standing{wanted: true}
	if err != nil || v != verdictNone {
		s = standing{until: d.clock.Now().Add(d.skip(ctx, k, v, err))}
	}
	d.inputs.answer(k, s, d.clock.Now())
}

// skip reports why a revision is not duplicated, and returns for how long.
func (d *Duplicator) skip(ctx context.Context, k key, v verdict, err error) (wait time.Duration) {
	switch {
	case err != nil:
		d.logger.Warnw("Not duplicating inputs for now: failed to read or take the lock", "function", k.String(), zap.Error(err))
		d.metrics.onSkipped(k.NamespacedName, reasonNoLock)
		return retryAfter
	case v == verdictDone:
		d.metrics.onSkipped(k.NamespacedName, reasonDone)
		// It stays done for as long as requests come.
		if err := d.locks.prolong(ctx, k, doneFor); err != nil {
			d.logger.Warnw("Failed to note that a function is still in use; its inputs may be duplicated again", "function", k.String(), zap.Error(err))
		}
		return settledFor
	case v == verdictFailed:
		d.metrics.onSkipped(k.NamespacedName, reasonFailed)
		return settledFor
	default:
		d.metrics.onSkipped(k.NamespacedName, reasonBusy)
		return retryAfter
	}
}

// handle duplicates the inputs of a revision, unless that was done already or another activator is at it.
func (d *Duplicator) handle(ctx context.Context, j job) {
	k := keyOf(j.rev)
	wait := settledFor
	defer func() {
		now := d.clock.Now()
		d.inputs.done(j, now.Add(wait), now)
	}()
	// It may have waited for hours.
	if err := d.unwanted(ctx, j.rev); err != nil {
		wait = retryAfter
		d.logger.Infow("Not duplicating the inputs of a function", "function", k.String(), zap.Error(err))
		d.metrics.onSkipped(k.NamespacedName, reasonUnwanted)
		return
	}
	v, err := d.locks.acquire(ctx, k, lockFor)
	if err != nil || v != verdictHeld {
		wait = d.skip(ctx, k, v, err)
		return
	}

	counts, err := d.hold(ctx, j)
	v, ttl, result := verdictDone, doneFor, resultFinished
	switch {
	case err == nil:
		d.logger.Infow("Duplicated the inputs of a function", "function", k.String(), "replays", counts.String())
		d.tell(j.rev, corev1.EventTypeNormal, eventFinished, "Replayed inputs to the copy: %s", counts)
	case errors.Is(err, errStopped), errors.Is(err, errUnwanted):
		// Another activator may do it right away, or this one when it is wanted again.
		v, ttl, result, wait = verdictFailed, 0, resultStopped, retryAfter
		d.logger.Infow("Stopped duplicating the inputs of a function", "function", k.String(), "replays", counts.String(), zap.Error(err))
	default:
		v, ttl, result = verdictFailed, failedFor, resultFailed
		d.logger.Warnw("Failed to duplicate the inputs of a function", "function", k.String(), "replays", counts.String(), zap.Error(err))
		d.tell(j.rev, corev1.EventTypeWarning, eventFailed, "Failed to duplicate inputs: %v", err)
	}
	d.metrics.onDuplication(k.NamespacedName, result)
	if err := d.settle(ctx, k, v, ttl); err != nil {
		d.logger.Warnw("Failed to tell the other activators about a duplication; one of them may repeat it", "function", k.String(), zap.Error(err))
	}
}

// settle retries for as long as the lock may last, unless the activator is stopping.
func (d *Duplicator) settle(ctx context.Context, k key, v verdict, ttl time.Duration) error {
	for began := d.clock.Now(); ; {
		once, cancel := context.WithTimeout(context.WithoutCancel(ctx), redisWithin)
		err := d.locks.settle(once, k, v, ttl)
		cancel()
		if err == nil || errors.Is(err, errLost) || d.clock.Since(began) >= lockFor || d.pause(ctx) != nil {
			return err
		}
	}
}

// unwanted returns why a revision's inputs are not to be duplicated any more, or nil, also if that cannot be told.
func (d *Duplicator) unwanted(ctx context.Context, rev *v1.Revision) error {
	if d.stopped(rev.Namespace) {
		return fmt.Errorf("%w: the settings allow only the mode observe", errUnwanted)
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	now, err := d.revision(ctx, rev.Namespace, rev.Name)
	switch {
	case apierrors.IsNotFound(err), err == nil && (now.UID != rev.UID || now.DeletionTimestamp != nil):
		return fmt.Errorf("%w: the revision is gone", errUnwanted)
	case err == nil && now.GetRoutingState() == v1.RoutingStateReserve:
		return fmt.Errorf("%w: the revision gets no traffic", errUnwanted)
	}
	return nil
}

// hold duplicates for as long as it holds the lock and the duplication is wanted.
func (d *Duplicator) hold(ctx context.Context, j job) (tally, error) {
	k := keyOf(j.rev)
	ctx, cancel := context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		held := d.clock.Now()
		ticker := d.clock.NewTicker(renewEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C():
			}
			if err := d.unwanted(ctx, j.rev); err != nil {
				cancel(err)
				return
			}
			now := d.clock.Now()
			err := d.locks.renew(ctx, k, lockFor)
			switch {
			case err == nil:
				held = now
			case errors.Is(err, errLost) || d.clock.Since(held) >= lockFor:
				cancel(fmt.Errorf("%w: %w", errNotHeld, err))
				return
			}
		}
	})
	counts, err := d.duplicate(ctx, j)
	cancel(nil)
	renewing.Wait()
	return counts, err
}

// duplicate makes the copy, replays the inputs to it and removes it, even after an error.
func (d *Duplicator) duplicate(parent context.Context, j job) (counts tally, err error) {
	ctx, cancel := context.WithTimeoutCause(parent, duplicationMost,
		fmt.Errorf("the duplication took more than %v", duplicationMost))
	defer cancel()
	k := keyOf(j.rev)
	var uid types.UID
	defer func() {
		if uid == "" && errors.Is(context.Cause(parent), errNotHeld) {
			// The Service with the copy's name may be another activator's by now. If this one made it, sweep removes it when
			// it is old enough.
			return
		}
		removeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
		defer cancel()
		removal := d.remove(removeCtx, j.rev.Namespace, j.rev.Name, uid)
		d.metrics.onRemoval(k.NamespacedName, removal, false)
		if removal != nil && !errors.Is(removal, errForeign) {
			d.logger.Errorw("Failed to remove a copy; it will be removed when it is old enough", "function", k.String(), "copy", copyName(j.rev.Name), zap.Error(removal))
			d.tell(j.rev, corev1.EventTypeWarning, eventNotRemoved, "The copy %s is not removed yet: %v", copyName(j.rev.Name), removal)
		}
	}()
	defer func() {
		if cause := context.Cause(ctx); cause != nil && err != nil {
			if errors.Is(cause, context.Canceled) {
				cause = errStopped
			}
			err = fmt.Errorf("%w: %w", cause, err)
		}
	}()
	deadline := d.clock.Now().Add(readyWithin)
	if uid, err = d.create(ctx, j.rev, deadline); err != nil {
		return nil, err
	}
	replays := plan(j.inputs)
	d.metrics.onCopy(k.NamespacedName)
	d.tell(j.rev, corev1.EventTypeNormal, eventStarted, "Replaying %d kept inputs as %d scaled requests to the copy %s",
		len(j.inputs), len(replays), copyName(j.rev.Name))
	d.logger.Infow("Duplicating the inputs of a function", "function", k.String(), "copy", copyName(j.rev.Name),
		"inputs", len(j.inputs), "replays", len(replays))
	to, err := d.awaitReady(ctx, j.rev, uid, deadline)
	if err != nil {
		return nil, err
	}
	counts = d.replayer.sendAll(ctx, to, replays, func(result string) { d.metrics.onReplay(k.NamespacedName, result) })
	switch {
	case counts[resultOK] == 0:
		return counts, fmt.Errorf("none of %d replays succeeded: %s", len(replays), counts)
	case counts.total() < len(replays):
		return counts, fmt.Errorf("only %d of %d replays ended, and those of the largest inputs did not: %s", counts.total(), len(replays), counts)
	}
	return counts, nil
}

// create makes the copy, in place of one that was left behind, and returns its UID.
func (d *Duplicator) create(ctx context.Context, rev *v1.Revision, deadline time.Time) (types.UID, error) {
	service := copyOf(rev, d.largest)
	for {
		created, err := d.serving.ServingV1().Services(rev.Namespace).Create(ctx, service, metav1.CreateOptions{})
		switch {
		case err == nil:
			return created.UID, nil
		case apierrors.IsAlreadyExists(err):
			// It may also come from an attempt of this activator whose answer was lost.
			if removal := d.tryRemove(ctx, rev.Namespace, rev.Name); removal != nil {
				err = removal
			}
		}
		if isFinal(err) || d.clock.Now().After(deadline) {
			return "", fmt.Errorf("creating Service %s/%s: %w", service.Namespace, service.Name, err)
		}
		if paused := d.pause(ctx); paused != nil {
			return "", fmt.Errorf("waiting to create Service %s/%s: %w", service.Namespace, service.Name, err)
		}
	}
}

// isFinal reports whether the copy was refused, perhaps by a webhook or a quota, so that another attempt would be,
// too.
func isFinal(err error) bool {
	return errors.Is(err, errForeign) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// awaitReady returns the copy's revision once a pod of it is ready. It does not need the Service's route, which takes
// longer.
func (d *Duplicator) awaitReady(ctx context.Context, rev *v1.Revision, uid types.UID, deadline time.Time) (types.NamespacedName, error) {
	name := copyName(rev.Name)
	for {
		service, err := d.serving.ServingV1().Services(rev.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return types.NamespacedName{}, fmt.Errorf("the Service %s/%s was deleted by someone else", rev.Namespace, name)
		case err == nil && service.UID != uid:
			return types.NamespacedName{}, fmt.Errorf("the Service %s/%s was replaced by someone else", rev.Namespace, name)
		case err == nil && service.Status.LatestReadyRevisionName != "":
			return types.NamespacedName{Namespace: rev.Namespace, Name: service.Status.LatestReadyRevisionName}, nil
		case err == nil:
			err = errors.New(whyNotReady(service))
		}
		if d.clock.Now().After(deadline) {
			return types.NamespacedName{}, fmt.Errorf("the Service %s/%s is not ready after %v: %w", rev.Namespace, name, readyWithin, err)
		}
		if paused := d.pause(ctx); paused != nil {
			return types.NamespacedName{}, fmt.Errorf("waiting for Service %s/%s: %w", rev.Namespace, name, err)
		}
	}
}

func whyNotReady(service *v1.Service) string {
	condition := service.Status.GetCondition(v1.ServiceConditionConfigurationsReady)
	if condition == nil {
		return "Knative has not reported its status yet"
	}
	return fmt.Sprintf("%s is %s: %s %s", condition.Type, condition.Status, condition.Reason, condition.Message)
}

func (d *Duplicator) pause(ctx context.Context) error {
	select {
	case <-d.clock.After(pollEvery):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
