package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
)

const (
	// quiet is how long checks may take before Progress hears which of them run.
	quiet = 2 * time.Second
	// atOnce is how many checks run at a time.
	atOnce = 16
)

type look func(context.Context, *Cluster) ([]Finding, error)

// Runner runs checks.
type Runner struct {
	Clock clock.WithTicker
	// Timeout bounds each check.
	Timeout time.Duration
	// Progress is called every two seconds with the checks that still run.
	Progress func(line string)
}

// Run returns the findings, the worst first. That a check could not look is a finding, too.
func (r Runner) Run(ctx context.Context, cluster *Cluster, checks []Check) []Finding {
	checks = slices.DeleteFunc(slices.Clone(checks), func(c Check) bool { return c.installed && !cluster.Installed })
	found := make([][]Finding, len(checks))
	var mu sync.Mutex
	running := make(map[string]bool, len(checks))
	for _, c := range checks {
		running[c.ID] = true
	}

	slots := make(chan struct{}, atOnce)
	var looking sync.WaitGroup
	for i, c := range checks {
		looking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			found[i] = r.one(ctx, cluster, c)
			mu.Lock()
			defer mu.Unlock()
			delete(running, c.ID)
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		looking.Wait()
	}()
	r.wait(done, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return left(checks, running)
	})

	findings := slices.Concat(found...)
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return slices.Index(severities, a.Severity) - slices.Index(severities, b.Severity)
	})
	return findings
}

// wait reports progress until all checks are done.
func (r Runner) wait(done <-chan struct{}, left func() []string) {
	began := r.Clock.Now()
	ticker := r.Clock.NewTicker(quiet)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C():
			r.Progress(fmt.Sprintf("After %v these checks still run: %s", r.Clock.Since(began).Round(time.Second), strings.Join(left(), ", ")))
		}
	}
}

// left returns the IDs of the checks that still run, in the order of checks.
func left(checks []Check, running map[string]bool) (ids []string) {
	for _, c := range checks {
		if running[c.ID] {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

func (r Runner) one(ctx context.Context, cluster *Cluster, c Check) []Finding {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	findings, err := c.run(ctx, cluster)
	if err != nil {
		findings = append(findings, notKnown(err, r.Timeout))
	}
	if len(findings) == 0 {
		findings = []Finding{fine(wholeCluster, "%s", cmp.Or(c.Fine, "there is nothing to look at"))}
	}
	for i := range findings {
		findings[i].Check = c.ID
	}
	return findings
}

// grant lets the caller read what checks look at.
const grant = `kubectl create clusterrolebinding libra-check-me --clusterrole=libra-check --user="$(kubectl auth whoami -o jsonpath='{.status.userInfo.username}')"  # as an administrator, once manifests/check is applied`

// notKnown says why a check could not look.
func notKnown(err error, timeout time.Duration) Finding {
	switch {
	case errors.Is(err, errKubelets):
		return warning(Object{Kind: "nodes"}, "kubectl libra check  # as an administrator", "not known: %v", err)
	case apierrors.IsForbidden(err):
		return warning(wholeCluster, grant, "not known: %v", err)
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err):
		return warning(wholeCluster, fmt.Sprintf("kubectl libra check --timeout %v", 6*timeout), "not known: there was no answer within %v", timeout)
	default:
		return warning(wholeCluster, "kubectl libra check", "not known: %v", err)
	}
}
