package main

import (
	"context"
	"fmt"
	"slices"

	"libra.dev/libra/loadtest/demo/evaluation"
)

const replayScript = "loadtest/k6/replay.js"

// readyRun is a measureRun as soon as it may begin.
func (e *evaluate) readyRun(ctx context.Context, p policy, l *load, round int) (evaluation.Run, error) {
	if err := e.ready(ctx, p, e.learned); err != nil {
		return evaluation.Run{}, err
	}
	return e.measureRun(ctx, p, l, round)
}

// measureRun replays a load under a policy that is in force and ready, and collects all
// that is known of it.
func (d *demo) measureRun(ctx context.Context, p policy, l *load, round int) (evaluation.Run, error) {
	run := evaluation.Run{Policy: p.Name, Workload: l.workload, Round: round, Planned: len(l.entries)}
	s, err := d.openSampler(ctx)
	if err != nil {
		return run, err
	}
	defer s.close()
	var last string
	var before histograms
	var written int
	if p.libra {
		if last, err = d.lastObservation(ctx); err == nil {
			if before, err = d.readStages(ctx); err == nil {
				written, err = d.agentWrites(ctx)
			}
		}
		if err != nil {
			return run, err
		}
	}
	name := fmt.Sprintf("%s-%s-%d", l.workload, p.Name, round)
	run.Samples, run.Parts, err = s.during(func() error {
		run.Results, err = d.replayLoad(ctx, name, l)
		return err
	})
	if err != nil || !p.libra {
		return run, err
	}
	after, err := d.readStages(ctx)
	if err != nil {
		return run, err
	}
	run.Stages = after.since(before)
	if run.Writes, err = d.agentWrites(ctx); err != nil {
		return run, err
	}
	run.Writes -= written
	run.Outcomes, err = d.outcomesOf(ctx, last, run.Results)
	return run, err
}

// ready waits until requests are answered and nothing is on loan. It sends some of those
// that Libra learned from: the measured ones are to be new to it.
func (d *demo) ready(ctx context.Context, p policy, learned *load) error {
	d.corpus = learned.corpus
	if p.libra {
		return d.settle(ctx, learned.requests())
	}
	if err := d.warm(ctx, learned.requests()); err != nil {
		return err
	}
	if p.services != nil {
		return nil // their limits are what the policy makes them
	}
	return d.awaitOwnLimits(ctx)
}

// outcomesOf says what became of the invocations of results, from the observations after
// the entry last.
func (d *demo) outcomesOf(ctx context.Context, last string, results []evaluation.Result) (map[string]evaluation.Outcome, error) {
	wanted := map[string]bool{}
	for _, r := range results {
		if r.RequestID != "" && slices.Contains(d.services.optedIn, r.Function) {
			wanted[r.RequestID] = true
		}
	}
	found, err := d.observations(ctx, last, wanted)
	outcomes := map[string]evaluation.Outcome{}
	for request, o := range found {
		outcomes[request] = evaluation.Outcome{
			Lent: o.Lent, Borrowed: o.Borrowed, Predicted: o.Predicted, Peak: o.Peak, Limit: o.Limit,
			Duration: o.Duration, ThrottledShare: o.ThrottledShare, Safeguarded: o.Safeguarded,
		}
	}
	return outcomes, err
}

// replayLoad runs k6 over a load and returns what became of each request.
func (d *demo) replayLoad(ctx context.Context, name string, l *load) ([]evaluation.Result, error) {
	console, err := d.runK6(ctx, name, replayScript, l.length(), map[string]string{
		"SCHEDULE": l.scheduleAt, "CORPUS": l.corpusAt, "SUMMARY": d.path(name + "-summary.json"),
	}, "REQUEST_LINES=1")
	if err != nil {
		return nil, err
	}
	return readResults(console)
}

// learn has Libra learn the functions.
func (e *evaluate) learn(ctx context.Context) error {
	if err := e.use(ctx, policy{libra: true}); err != nil {
		return err
	}
	if err := e.replayLearned(ctx, "learn", "Libra learns the functions from other requests"); err != nil {
		return err
	}
	return e.awaitModels(ctx)
}

// learnVPA has the autoscaler see the functions at work.
func (e *evaluate) learnVPA(ctx context.Context, p policy) error {
	own, err := e.under(ctx, p)
	if err != nil {
		return err
	}
	if err := own.replayLearned(ctx, "learn-"+p.Name, "the vertical pod autoscaler sees the functions at work"); err != nil {
		return err
	}
	return e.leave(ctx, p)
}

func (e *evaluate) replayLearned(ctx context.Context, name, what string) error {
	e.corpus = e.learned.corpus
	if err := e.warm(ctx, e.learned.requests()); err != nil {
		return err
	}
	e.say("%s: %d requests in %.0f s: %s", name, len(e.learned.entries), e.evaluateOptions.learnLength.Seconds(), what)
	_, err := e.replayLoad(ctx, name, e.learned)
	return err
}
