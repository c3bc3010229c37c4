package main

import (
	"context"
	"fmt"
	"time"

	"libra.dev/libra/loadtest/demo/evaluation"
)

const replayScript = "loadtest/k6/replay.js"

// measureRun replays a load under a policy that is in force, and collects all that is
// known of it.
func (e *evaluate) measureRun(ctx context.Context, p policy, l *load, round int) (evaluation.Run, error) {
	run := evaluation.Run{Policy: p.Name, Workload: l.workload, Round: round, Planned: len(l.entries)}
	e.corpus = l.corpus
	if err := e.ready(ctx, p, l); err != nil {
		return run, err
	}
	s, err := e.openSampler(ctx)
	if err != nil {
		return run, err
	}
	defer s.close()
	var last string
	var before histograms
	var written int
	if p.libra {
		if last, err = e.lastObservation(ctx); err == nil {
			if before, err = e.readStages(ctx); err == nil {
				written, err = e.agentWrites(ctx)
			}
		}
		if err != nil {
			return run, err
		}
	}
	name := fmt.Sprintf("%s-%s-%d", l.workload, p.Name, round)
	run.Samples, run.Parts, err = s.during(func() error {
		run.Results, err = e.replayLoad(ctx, name, l)
		return err
	})
	if err != nil || !p.libra {
		return run, err
	}
	after, err := e.readStages(ctx)
	if err != nil {
		return run, err
	}
	run.Stages = after.since(before)
	if run.Writes, err = e.agentWrites(ctx); err != nil {
		return run, err
	}
	run.Writes -= written
	run.Outcomes, err = e.outcomesOf(ctx, last, run.Results)
	return run, err
}

// ready waits until requests are answered and nothing is on loan.
func (e *evaluate) ready(ctx context.Context, p policy, l *load) error {
	if p.libra {
		return e.settle(ctx, l.requests())
	}
	if err := e.warm(ctx, l.requests()); err != nil {
		return err
	}
	if p.services != nil {
		return nil // their limits are what the policy makes them
	}
	return e.awaitOwnLimits(ctx)
}

func (e *evaluate) outcomesOf(ctx context.Context, last string, results []evaluation.Result) (map[string]evaluation.Outcome, error) {
	wanted := map[string]bool{}
	for _, r := range results {
		if r.RequestID != "" {
			wanted[r.RequestID] = true
		}
	}
	found, err := e.observations(ctx, last, wanted)
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
func (e *evaluate) replayLoad(ctx context.Context, name string, l *load) ([]evaluation.Result, error) {
	length := time.Duration(l.entries[len(l.entries)-1].AtMS) * time.Millisecond
	console, err := e.runK6(ctx, name, replayScript, length, map[string]string{
		"SCHEDULE": l.scheduleAt, "CORPUS": l.corpusAt, "SUMMARY": e.path(name + "-summary.json"),
	}, "REQUEST_LINES=1")
	if err != nil {
		return nil, err
	}
	return readResults[evaluation.Result](console)
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
