// Package reports writes the FunctionReport of each namespace: what Libra does for its functions, or
// would do.
package reports

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/report"
	"libra.dev/libra/resizer/backoff"
	"libra.dev/libra/resizer/rounds"
)

const (
	// every is how often reports are made, and so how often one report is written at most.
	every = 10 * time.Second
	// unchanged is how often a report is written when nothing but the time has changed.
	unchanged = time.Minute
	// removeAfter is how long a namespace must have no opted-in function before its report is removed.
	removeAfter = time.Hour

	readTimeout = 5 * time.Second
	// An API server may delay the creation of an object of a kind that it has known for less than five
	// seconds.
	writeTimeout = 8 * time.Second
	// A write that failed is tried again after a delay between these.
	retryMin = every
	retryMax = 5 * time.Minute

	// writesPerSecond bounds what reports cost the API server. When more namespaces change than it allows
	// for, those that were written the longest ago come first.
	writesPerSecond = 20
)

// Store holds what the parts have counted.
type Store interface {
	ReadReports(ctx context.Context, slots []report.Slot) (map[report.Slot]map[string]string, error)
}

// Writer writes reports. Only one writes at a time, the leader's.
type Writer struct {
	rounds.Rounds
	store  Store
	cached client.Reader // of Revisions
	direct client.Reader // of reports; only their versions are kept
	kube   client.Client
	live   Live

	window     *window
	namespaces map[string]*namespace
	limiter    *rate.Limiter
}

// namespace is what the Writer knows about the report of one namespace.
type namespace struct {
	name string
	// written is the report as it was written last, without its status; nil when that is not known.
	written   *v1alpha1.FunctionReport
	writtenAt time.Time
	digest    uint64
	emptyAt   time.Time // since when it has no opted-in function; zero while it has
	failure   error     // why the last write failed; nil if it did not
	retryAt   time.Time
	retry     backoff.Delay
}

// NewWriter makes a Writer. cached has the opted-in Revisions, and direct reads from the API server.
func NewWriter(clk clock.WithTicker, log logr.Logger, store Store, cached, direct client.Reader, kube client.Client, live Live) *Writer {
	w := &Writer{
		store: store, cached: cached, direct: direct, kube: kube, live: live,
		window:  newWindow(),
		limiter: rate.NewLimiter(writesPerSecond, writesPerSecond),
	}
	w.Rounds = rounds.Rounds{Clock: clk, Log: log, Every: every, What: "reports", Round: w.round}
	return w
}

// round writes the reports that are due.
func (w *Writer) round(ctx context.Context) error {
	if w.namespaces == nil {
		if err := w.find(ctx); err != nil {
			return err
		}
	}
	now := w.Clock.Now()
	functions, partly, err := w.count(ctx, now)
	if err != nil {
		return err
	}
	// Stop when the next round is due: it begins with what is left.
	ctx, cancel := context.WithTimeout(ctx, every)
	defer cancel()
	errs := []error{partly}
	for _, n := range w.inTurn() {
		if now.Before(n.retryAt) {
			errs = append(errs, n.failure)
			continue
		}
		if ctx.Err() != nil {
			break
		}
		of, optedIn := functions[n.name]
		if n.failure = w.reconcile(ctx, n, of, optedIn, now); n.failure != nil {
			n.retryAt = now.Add(n.retry.Next())
			n.written = nil
			errs = append(errs, n.failure)
			continue
		}
		n.retry.Reset()
	}
	return errors.Join(errs...)
}
