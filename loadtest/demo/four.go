package main

import (
	"context"
	"time"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/functions/inputs"
)

const (
	// fourNamespace is where the functions of end-to-end tests, chaos and the benches are.
	fourNamespace = "default"
	// fourLearned is how much of a schedule Libra learns from, as the time it takes when each
	// request is sent when it is due.
	fourLearned = time.Minute
)

// four are the functions of end-to-end tests and chaos, and a service that did not opt in.
var four = services{manifests: "loadtest/functions/manifests", optedIn: schedule.Functions, all: schedule.All}

// learnFour teaches Libra the four functions, with requests of the kind that they will get.
func (d *demo) learnFour(ctx context.Context) error {
	if err := d.forget(ctx); err != nil {
		return err
	}
	var err error
	if d.targets, err = d.findTargets(ctx); err != nil {
		return err
	}
	lessons := d.fourLessons()
	d.say("learning: %d functions", len(lessons))
	for _, l := range lessons {
		if err := d.newSender().untilAnswered(ctx, message{host: d.targets.hosts[l.service], input: l.inputs[0]}, l.service); err != nil {
			return err
		}
	}
	if _, _, err := teach(ctx, lessons, learnAtOnce); err != nil {
		return err
	}
	if err := d.awaitModels(ctx); err != nil {
		return err
	}
	return rig.Pause(ctx, settleTime)
}

// fourLessons returns lessons from a schedule of their own.
func (d *demo) fourLessons() []lesson {
	corpus := inputs.Corpus()
	p := pool{}
	for _, r := range schedule.Generate(learnSeed, fourLearned, corpus) {
		p[r.Function] = append(p[r.Function], inputs.Input{Body: r.BodyFrom(corpus), Expect: r.Expect})
	}
	return lessonsAt(d, d.services.optedIn, p, 1)
}
