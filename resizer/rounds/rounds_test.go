package rounds

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
)

func TestEachFailureIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		log := funcr.New(func(_, args string) { told = append(told, args) }, funcr.Options{})
		r := Rounds{Clock: clock.RealClock{}, Log: log, Every: time.Second, What: "reports"}
		ctx, cancel := context.WithCancel(t.Context())
		outcomes := []error{nil, errors.New("no space"), errors.New("no space"), errors.New("no rights"), nil, nil}
		var failing []bool
		r.Round = func(context.Context) error {
			failing = append(failing, r.Failing())
			if len(failing) > len(outcomes) {
				cancel() // what fails then fails for that
				return context.Canceled
			}
			return outcomes[len(failing)-1]
		}
		if err := r.Start(ctx); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]bool{false, false, true, true, true, false, false}, failing); diff != "" {
			t.Error("Failing() in each round (-want, +got):\n" + diff)
		}
		if len(told) != 3 || !strings.Contains(told[0], "no space") || !strings.Contains(told[1], "no rights") || !strings.Contains(told[2], "up to date again") {
			t.Errorf("told %q, want two failures and their end", told)
		}
	})
}

func TestRoundsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		n := 0
		r := Rounds{Clock: clock.RealClock{}, Every: time.Second, Round: func(context.Context) error { n++; return nil }}
		if err := r.Start(ctx); err != nil || n != 3 {
			t.Errorf("%d rounds in 3.5 s, want 3: %v", n, err)
		}
	})
}
