package agent

import (
	"context"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/report"
)

// inForce is how much less and how much more than it is owed a container has.
type inForce struct {
	lentMilli int64
	borrowed  api.Resources
}

// report adds to the tally what a container had in force for a time.
func (r *reflex) report(e *entry, passed time.Duration) {
	if e.reported == (inForce{}) {
		return
	}
	var sums report.Sums
	sums[report.LentCPU] = report.CPUTime(e.reported.lentMilli, passed)
	sums[report.BorrowedCPU] = report.CPUTime(e.reported.borrowed.CPUMilli, passed)
	sums[report.BorrowedMemory] = report.MemoryTime(e.reported.borrowed.MemoryBytes, passed)
	r.tally.Add(functionName(e.info.function), &sums)
}

// reportUse adds what a container used beyond its allocation when its CPU comes from the node: no
// loan shows that.
func (c *clamps) reportUse(ctx context.Context, k *clampedContainer, overMilli int64, passed time.Duration) {
	if overMilli <= 0 || k.bound != nil {
		return
	}
	coreSeconds(ctx, c.metrics.borrowedCPU, overMilli, passed)
	var sums report.Sums
	sums[report.BorrowedCPU] = report.CPUTime(overMilli, passed)
	c.tally.Add(functionName(k.function), &sums)
}

// reportSafeguard adds one safeguard that fired.
func (r *reflex) reportSafeguard(e *entry) {
	var sums report.Sums
	sums[report.Safeguards] = 1
	r.tally.Add(functionName(e.info.function), &sums)
}

// functionName parses namespace/revision.
func functionName(function string) types.NamespacedName {
	namespace, name, _ := strings.Cut(function, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// ReportTo makes the agent send what containers lent and borrowed to a store. Call it before Start.
func (a *Agent) ReportTo(store report.Store) {
	a.sender = &report.Sender{
		Clock:  a.clock,
		Store:  store,
		Writer: a.settings.Node + "." + a.reflex.agent,
		Drain:  a.reflex.tally.Drain,
		OnError: func(err error) {
			if err != nil {
				logf.Log.Info("could not report to Redis what functions lend and borrow; retrying", "reason", err.Error())
				return
			}
			logf.Log.Info("reports of what functions lend and borrow reach Redis again")
		},
	}
}
