package predict

import (
	"context"
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"
	"go.uber.org/zap"
)

const (
	// tripAfter is how many fetches in a row, of any functions, must fail before no more are
	// sent.
	tripAfter = 5
	// probeAfter is how long none is sent. Then one fetch probes the predictor, and no
	// request waits for it.
	probeAfter = 2 * time.Second
)

// newBreaker returns the circuit breaker around the predictor as a whole. It opens when
// the predictor fails, not when its answer about one function is useless.
func newBreaker(logger *zap.SugaredLogger, m *metrics) *gobreaker.TwoStepCircuitBreaker[any] {
	m.breakerIs(gobreaker.StateClosed)
	return gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Name:        "predictor",
		MaxRequests: 1,
		Timeout:     probeAfter,
		ReadyToTrip: func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures >= tripAfter },
		IsSuccessful: func(err error) bool {
			return err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, errMalformed)
		},
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			m.breakerIs(to)
			switch {
			case to == gobreaker.StateOpen && from == gobreaker.StateClosed:
				logger.Warnw("The predictor keeps failing; not asking it until a probe succeeds",
					"failures", tripAfter, "probeAfter", probeAfter)
			case to == gobreaker.StateClosed:
				logger.Info("The predictor answers again")
			default:
				logger.Debugw("The predictor's circuit breaker changed its state", "from", from, "to", to)
			}
		},
	})
}
