package check

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

func finding(of Finding) look {
	return func(context.Context, *Cluster) ([]Finding, error) { return []Finding{of}, nil }
}

func failing(err error) look {
	return func(context.Context, *Cluster) ([]Finding, error) { return nil, err }
}

func TestTheWorstComesFirst(t *testing.T) {
	checks := []Check{
		{ID: "a", run: finding(fine(wholeCluster, "well"))}, {ID: "b", run: finding(warning(wholeCluster, "x", "odd"))},
		{ID: "c", run: finding(failure(wholeCluster, "x", "bad"))}, {ID: "d", run: finding(warning(wholeCluster, "x", "odd, too"))},
		{ID: "e", Fine: "all is well", run: failing(nil)}, {ID: "nothing", run: failing(nil)}, {ID: "f", installed: true, run: finding(failure(wholeCluster, "x", "not there"))},
	}
	var got []string
	for _, f := range (Runner{Clock: clock.RealClock{}, Timeout: time.Minute}).Run(t.Context(), &Cluster{}, checks) {
		got = append(got, string(f.Severity)+" "+f.Check+": "+f.Message)
	}
	if want := []string{"error c: bad", "warning b: odd", "warning d: odd, too", "ok a: well", "ok e: all is well", "ok nothing: there is nothing to look at"}; !slices.Equal(got, want) {
		t.Errorf("found are %q, want %q", got, want)
	}
}

func TestWhatCannotBeLookedAtIsNotKnown(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("may not list nodes"))
	for name, tc := range map[string]struct {
		run             look
		message, remedy string
	}{
		"forbidden":      {failing(forbidden), "may not list nodes", "kubectl create clusterrolebinding"},
		"kubelets":       {failing(errKubelets), "nodes/proxy", "as an administrator"},
		"something else": {failing(errors.New("no route")), "no route", "kubectl libra check"},
		"what does not answer": {func(ctx context.Context, _ *Cluster) ([]Finding, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, "within 1ms", "--timeout 6ms"},
	} {
		t.Run(name, func(t *testing.T) {
			found := Runner{Clock: clock.RealClock{}, Timeout: time.Millisecond}.Run(t.Context(), &Cluster{}, []Check{{ID: "x", run: tc.run}})
			if len(found) != 1 || found[0].Severity != Warning || !strings.Contains(found[0].Message, "not known: ") ||
				!strings.Contains(found[0].Message, tc.message) || !strings.Contains(found[0].Remedy, tc.remedy) {
				t.Errorf("found is %+v, want a warning that says not known, %q, and %q", found, tc.message, tc.remedy)
			}
		})
	}
}

func TestProgressNamesWhatStillRuns(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	release, lines := make(chan struct{}), make(chan string)
	runner := Runner{Clock: clk, Timeout: time.Minute, Progress: func(line string) { lines <- line }}
	done := make(chan []Finding)
	fast := make(chan struct{})
	checks := []Check{
		{ID: "slow", run: func(context.Context, *Cluster) ([]Finding, error) { <-release; return nil, nil }},
		{ID: "fast", run: func(context.Context, *Cluster) ([]Finding, error) { defer close(fast); return nil, nil }},
	}
	go func() { done <- runner.Run(t.Context(), &Cluster{}, checks) }()
	<-fast
	for !clk.HasWaiters() {
		time.Sleep(time.Millisecond)
	}
	clk.Step(quiet)
	if line := <-lines; !strings.HasPrefix(line, "After 2s these checks still run: slow") {
		t.Errorf("it says %q", line)
	}
	close(release)
	if found := <-done; len(found) != 2 {
		t.Errorf("found are %+v", found)
	}
}
