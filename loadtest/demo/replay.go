package main

import (
	"context"
	"slices"

	"libra.dev/libra/loadtest/demo/report"
)

const replayScript = "loadtest/k6/replay.js"

// replay replays a load once it is ready, under the name of a run.
func (d *demo) replay(ctx context.Context, name string, l *load) ([]report.Result, error) {
	console, err := d.runK6(ctx, name, replayScript, l.length(), map[string]string{
		"SCHEDULE": l.scheduleAt, "CORPUS": l.corpusAt, "SUMMARY": d.path(name + "-summary.json"),
	}, "REQUEST_LINES=1")
	if err != nil {
		return nil, err
	}
	return readResults(console)
}

// replayRecorded is a replay under Libra, with what Libra recorded of its requests and how
// many limits the node agents wrote meanwhile.
func (d *demo) replayRecorded(ctx context.Context, name string, l *load) ([]report.Result, map[string]report.Outcome, int, error) {
	last, err := d.lastObservation(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	before, err := d.agentWrites(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	results, err := d.replay(ctx, name, l)
	if err != nil {
		return nil, nil, 0, err
	}
	after, err := d.agentWrites(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	outcomes, err := d.outcomesOf(ctx, last, results)
	return results, outcomes, after - before, err
}

// outcomesOf says what became of the invocations of results, from the observations after
// the entry last.
func (d *demo) outcomesOf(ctx context.Context, last string, results []report.Result) (map[string]report.Outcome, error) {
	wanted := map[string]bool{}
	for _, r := range results {
		if r.RequestID != "" && slices.Contains(d.services.optedIn, r.Function) {
			wanted[r.RequestID] = true
		}
	}
	found, err := d.observations(ctx, last, wanted)
	outcomes := map[string]report.Outcome{}
	for request, o := range found {
		outcomes[request] = report.Outcome{
			Lent: o.Lent, Borrowed: o.Borrowed, Predicted: o.Predicted, Peak: o.Peak, Limit: o.Limit,
			Duration: o.Duration, ThrottledShare: o.ThrottledShare, Safeguarded: o.Safeguarded,
		}
	}
	return outcomes, err
}
