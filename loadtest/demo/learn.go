package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"libra.dev/libra/loadtest/functions/inputs"
)

const (
	// learnAtOnce is how many functions are called at the same time, with one request each:
	// Libra learns from requests that are alone in their pods.
	learnAtOnce = 8
	// vpaLearns is how long the autoscaler watches its functions at work: a minute has six
	// of its intervals, and the metrics that it reads come late. vpaLearnsAgain is for the
	// function that is short of memory: it is the only one, and sooner known.
	vpaLearns      = 90 * time.Second
	vpaLearnsAgain = time.Minute
)

// lesson is a function to call, one request after the other.
type lesson struct {
	at      *demo
	service string // its name there
	inputs  []inputs.Input
}

// teach calls all functions, atOnce at a time, and returns how many requests were answered and how many failed.
func teach(ctx context.Context, lessons []lesson, atOnce int) (answered, failed int64, err error) {
	var answers, failures atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, l := range lessons {
		group.Go(func() error {
			s := l.at.newSender()
			defer s.http.CloseIdleConnections()
			for _, in := range l.inputs {
				fate := s.send(ctx, time.Now(), message{host: l.at.targets.hosts[l.service], input: in})
				if ctx.Err() != nil {
					return ctx.Err()
				}
				// Libra does not learn from a failed request. The caller notices if all fail.
				if fate.err == "" {
					answers.Add(1)
				} else {
					failures.Add(1)
				}
			}
			return nil
		})
	}
	err = group.Wait()
	return answers.Load(), failures.Load(), err
}

// lessonsAt returns the lessons of the functions at a place, in these sets.
func lessonsAt(own *demo, functions []string, p pool, sets ...int) []lesson {
	var lessons []lesson
	for _, set := range sets {
		for _, f := range functions {
			lessons = append(lessons, lesson{own, copied(f, set), p[f]})
		}
	}
	return lessons
}

// learn teaches Libra the functions, and waits until each has a model.
func (e *evaluate) learn(ctx context.Context, lessons []lesson) error {
	if len(lessons) == 0 {
		return nil
	}
	e.say("learning: %d functions, %d requests each", len(lessons), len(lessons[0].inputs))
	answered, failed, err := teach(ctx, lessons, learnAtOnce)
	e.data.Learned += int(answered)
	e.data.Unlearned += int(failed)
	if err != nil {
		return err
	}
	if answered == 0 {
		return fmt.Errorf("none of the requests from which Libra should learn was answered: do the functions in %s work?", lessons[0].at.namespace)
	}
	places := map[string]*demo{}
	for _, l := range lessons {
		places[l.at.namespace] = l.at
	}
	for _, own := range places {
		if err := own.awaitModels(ctx); err != nil {
			return err
		}
	}
	return nil
}

// learnVPA lets the autoscaler watch its functions at work for length.
func (e *evaluate) learnVPA(ctx context.Context, lessons []lesson, length time.Duration) (err error) {
	e.say("vertical pod autoscaler: watching the functions at work for %s", length)
	defer func() { err = errors.Join(err, e.scaleVPA(context.WithoutCancel(ctx), 0)) }()
	if err := e.scaleVPA(ctx, 1); err != nil {
		return err
	}
	working, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	for working.Err() == nil {
		if _, _, err := teach(working, lessons, len(lessons)); err != nil && working.Err() == nil {
			return err
		}
	}
	return ctx.Err()
}
