package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/ptr"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/functions/inputs"
	"libra.dev/libra/pkg/api"
)

const (
	plainFunction = "plain"
	// plainPerSecond is the rate at which each block calls the bystanders' service.
	plainPerSecond = 5
	plainInputs    = 20

	// wholeTimeout is how long an arm may take until it has exactly its pods.
	wholeTimeout = 2 * time.Minute
	// mostFailed is how many blocks may fail in a row until the phase is given up.
	mostFailed = 4
	// longestError is how many bytes of an error are kept with its request.
	longestError = 160
)

// scene is a phase that is set up: its functions are installed and learned.
type scene struct {
	phase
	places    map[string]*demo // by the arm that they are named after
	functions []string
	sets      int
	pool      pool
	capacity  capacity
	// bystander is the place of the services that have nothing to do with the functions; nil if
	// they are not measured.
	bystander *demo
	plain     []inputs.Input
}

// measure measures all combinations of a scene, block after block. It takes each block number through
// all combinations before the next number, so that changes over time affect all alike. After each
// number it checks how much time is left for the rest, and for the phases that follow.
func (e *evaluate) measure(ctx context.Context, s *scene, following timePlan) error {
	spinning, failed := false, 0
	first := s.first()
	for number := first; number <= s.most(); number++ {
		if number > first {
			s.combinations = e.inTime(s.from(number), following)
		}
		rng := rand.New(rand.NewPCG(seedOf(e.seed, "order", s.name, number), 0))
		rest := s.takesOf(number)
		for _, c := range s.inOrder(rng, number) {
			if with := c.part == evaluation.PartBystanders; with != spinning {
				replicas := 0
				if with {
					replicas = 1
				}
				if err := e.spin(ctx, s.bystander, replicas); err != nil {
					return err
				}
				spinning = with
			}
			for order, a := range shuffled(rng, c, number) {
				began, parts, repeated := time.Now(), e.parts, e.repeated
				rest -= c.blockTakes()
				b, err := e.quietly(ctx, c.blockTakes(), rest, func() (evaluation.Block, error) {
					return e.block(ctx, s, c, a, number, order+1)
				})
				if err == nil {
					e.keep(b)
					if failed = 0; e.parts == parts && e.repeated == repeated {
						e.gaps.note(c, time.Since(began)-c.length)
					}
					continue
				}
				err = fmt.Errorf("%s, block %d under %s: %w", c, number, a.Title, err)
				if failed++; ctx.Err() != nil || failed == mostFailed {
					return err
				}
				// One failed block is no reason to lose the others.
				e.say("not measured: %v", err)
				e.data.Unmeasured = append(e.data.Unmeasured, err.Error())
			}
			// Save everything measured so far, in case nothing follows. For a whole evaluation
			// this takes a second, too long to do it after every block.
			if err := e.data.WriteFile(e.path(evaluation.DataFile)); err != nil {
				return err
			}
		}
	}
	if spinning {
		return e.spin(ctx, s.bystander, 0)
	}
	return nil
}

// inTime returns the combinations in the rest of a phase, without the turns for which there is
// no time, and logs those.
func (e *evaluate) inTime(rest phase, following timePlan) []combination {
	if rest.name == phaseDemo {
		rest = rest.shortened(e.left())
	}
	fitted := slices.Concat(timePlan{rest}, following).by(e.gaps).fit(e.left())
	e.planned = e.measured + fitted.blocks()
	for _, left := range rest.leftOut(fitted[0]) {
		e.say("left out from now on: %s", left)
		// The demo promises only the first block of each.
		if rest.name != phaseDemo {
			e.data.Unmeasured = append(e.data.Unmeasured, "After some blocks: "+left)
		}
	}
	return fitted[0].combinations
}

// block measures one block.
func (e *evaluate) block(ctx context.Context, s *scene, c combination, a arm, number, order int) (b evaluation.Block, err error) {
	own := s.places[a.place()]
	b = evaluation.Block{Part: c.part, Load: c.load, Pods: c.pods, Number: number, Arm: a.Name, Order: order, Length: c.length}
	schedule := arrivals(seedOf(e.seed, c.part, c.load, c.pods, number), s.capacity.perSecond(c.load), c.length,
		callees{s.functions, s.sets, len(s.pool[s.functions[0]])})
	if len(schedule) == 0 {
		return b, errors.New("the schedule has no request: the block is too short for the load")
	}
	if err := e.ready(ctx, s, a, own); err != nil {
		return b, err
	}
	if a.vpa {
		defer func() { err = errors.Join(err, e.scaleVPA(context.WithoutCancel(ctx), 0)) }()
		if err := e.scaleVPA(ctx, 1); err != nil {
			return b, err
		}
	}
	e.measured++
	e.say("block %d of %d: %s, number %d, %s: %d requests in %s", e.measured, e.planned, c, number, a.Title, len(schedule), c.length)
	m, err := own.openMeter(ctx)
	if err != nil {
		return b, err
	}
	defer m.close()
	var after []func() error
	reading := func(then func() error, failed error) {
		after, err = append(after, then), errors.Join(err, failed)
	}
	if a.source == api.SourceOwners {
		reading(reads(ctx, own.loans, func(before, now evaluation.Loans) { b.Loans = ptr.To(now.Since(before)) }))
	}
	if a.weighs() {
		reading(reads(ctx, own.weighed, func(before, now evaluation.Weighed) {
			if since := now.Since(before); since.Requests > 0 {
				b.Weighed = &since
			}
		}))
	}
	if a.placement != "" {
		reading(reads(ctx, own.choices, func(before, now choices) {
			b.Placed = ptr.To(now.of(a.placement).Since(before.of(a.placement)))
		}))
	}
	reading(reads(ctx, own.oomKills, func(before, now kills) { b.OOMKills = now.since(before) }))
	if err != nil {
		return b, err
	}
	var watched *podWatch
	if c.part == evaluation.PartCost {
		if watched, err = own.watchPods(ctx); err != nil {
			return b, err
		}
	}
	err = e.send(ctx, s, c, own, m, schedule, &b)
	if watched != nil {
		var failed error
		b.PodSeconds, b.ColdStarts, failed = watched.stop()
		err = errors.Join(err, failed)
	}
	for _, read := range after {
		if err == nil {
			err = read()
		}
	}
	return b, err
}

// reads reads counters before a block. The function that it returns reads them again, and
// passes both readings to note.
func reads[T any](ctx context.Context, read func(context.Context) (T, error), note func(before, now T)) (after func() error, err error) {
	before, err := read(ctx)
	return func() error {
		now, err := read(ctx)
		if err == nil {
			note(before, now)
		}
		return err
	}, err
}

// measuredArms returns the arms that have blocks, in the order of the report.
func measuredArms(blocks []evaluation.Block) []evaluation.Arm {
	var found []evaluation.Arm
	for _, a := range allArms() {
		if slices.ContainsFunc(blocks, func(b evaluation.Block) bool { return b.Arm == a.Name }) {
			found = append(found, a.Arm)
		}
	}
	return found
}

// send sends a schedule to the functions of a place and measures the node's CPU use over its length.
func (e *evaluate) send(ctx context.Context, s *scene, c combination, own *demo, m *meter, schedule []arrival, b *evaluation.Block) (err error) {
	messages := make([]message, len(schedule))
	for i, a := range schedule {
		messages[i] = message{a.at, own.targets.hosts[copied(a.function, a.set)], s.pool[a.function][a.input], strconv.Itoa(a.input)}
	}
	var spinner []*metered
	var plain []arrival
	if c.hasBystanders() {
		plain = arrivals(seedOf(e.seed, c.part, c.load, c.pods, b.Number, plainFunction), plainPerSecond, c.length, callees{[]string{plainFunction}, 1, len(s.plain)})
		b.Bystander = &evaluation.Bystander{}
	}
	if c.part == evaluation.PartBystanders {
		found := containers{}
		if err := e.open(ctx, []string{"-n", s.bystander.namespace, "-l", "app=" + spinDeployment}, toName(found)); err != nil {
			return err
		}
		spinner = found[spinDeployment]
		defer closeAll(spinner)
		if len(spinner) != 1 {
			return fmt.Errorf("%d containers of %s run in %s; there must be one", len(spinner), spinDeployment, s.bystander.namespace)
		}
	}
	if e.boxed() {
		stop, failed := runAhead()
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	sender := own.newSender()
	defer sender.http.CloseIdleConnections()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		fates, err := sender.replay(ctx, messages)
		if err == nil {
			b.Requests = requestsOf(schedule, s.pool, fates)
		}
		return err
	})
	if b.Bystander != nil {
		group.Go(func() error {
			messages := make([]message, len(plain))
			for i, a := range plain {
				messages[i] = message{due: a.at, host: s.bystander.targets.hosts[plainFunction], input: s.plain[a.input]}
			}
			fates, err := sender.replay(ctx, messages)
			if err == nil {
				b.Bystander.Requests = requestsOf(plain, pool{plainFunction: s.plain}, fates)
			}
			return err
		})
	}
	group.Go(func() error {
		before, err := m.read()
		if err != nil {
			return err
		}
		spun := used(spinner)
		if err := rig.Pause(ctx, c.length); err != nil {
			return err
		}
		after, err := m.read()
		if err != nil {
			return err
		}
		b.CPU = after.since(before)
		if b.Bystander != nil {
			b.Bystander.SpinCPU = (used(spinner) - spun).Seconds()
		}
		return nil
	})
	return group.Wait()
}

// ready waits until an arm has exactly its pods, and sets Libra's parts as the arm needs them.
func (e *evaluate) ready(ctx context.Context, s *scene, a arm, own *demo) error {
	if a.learns && a.parts != e.parts {
		e.say("setting Libra's parts for %s", a.Title)
		e.parts = partsUnknown
		if err := e.setParts(ctx, a.parts); err != nil {
			return err
		}
		e.parts = a.parts
	}
	if a.perfect {
		if err := e.oracle.unasked(own); err != nil {
			return err
		}
	}
	if err := own.whole(ctx, s.name == phaseMemory && !a.vpa); err != nil || a.placement == "" {
		return err
	}
	return e.placeBy(ctx, s, own, a.placement)
}

// requestsOf joins the planned requests with their outcomes.
func requestsOf(schedule []arrival, p pool, fates []fate) []evaluation.Request {
	requests := make([]evaluation.Request, len(schedule))
	for n, a := range schedule {
		f := fates[n]
		requests[n] = evaluation.Request{
			N: n, Function: a.function, Set: a.set, Input: a.input, Size: int64(len(p[a.function][a.input].Body)),
			DueMS: tenths(a.at), LateMS: tenths(f.late), Milliseconds: tenths(f.took), Status: f.status, Error: f.err,
		}
		if len(f.err) > longestError {
			requests[n].Error = f.err[:longestError]
		}
	}
	return requests
}

func failures(requests []evaluation.Request) int {
	n := 0
	for _, r := range requests {
		if r.Error != "" {
			n++
		}
	}
	return n
}

func firstError(requests []evaluation.Request) string {
	for _, r := range requests {
		if r.Error != "" {
			return r.Error
		}
	}
	return ""
}

// plainPool makes the inputs of the bystanders' service.
func plainPool(seed uint64, corpus []byte) []inputs.Input {
	rng := rand.New(rand.NewPCG(seedOf(seed, plainFunction), 0))
	var made []inputs.Input
	for range plainInputs {
		made = append(made, inputs.Cut(rng, corpus, inputs.LogUniform(rng, 1<<10, 64<<10)))
	}
	return made
}

// warmUp waits until the functions of all places answer, and then has them work for a while, so
// that no block finds them colder than another.
func (e *evaluate) warmUp(ctx context.Context, s *scene, length time.Duration) error {
	for _, place := range slices.Sorted(maps.Keys(s.places)) {
		own := s.places[place]
		sender := own.newSender()
		smallest := s.pool.smallest()
		group, within := errgroup.WithContext(ctx)
		for set := 1; set <= s.sets; set++ {
			for _, f := range s.functions {
				group.Go(func() error {
					return sender.untilAnswered(within, message{host: own.targets.hosts[copied(f, set)], input: smallest[f]}, own.namespace+"/"+copied(f, set))
				})
			}
		}
		if err := group.Wait(); err != nil {
			return err
		}
		sender.http.CloseIdleConnections()
		if length == 0 {
			continue
		}
		schedule := arrivals(seedOf(e.seed+learnSeed, "warm up"), s.capacity.perSecond(loadMiddle), length, callees{s.functions, s.sets, len(s.pool[s.functions[0]])})
		var b evaluation.Block
		if err := e.send(ctx, s, combination{length: length}, own, nil, schedule, &b); err != nil {
			return err
		}
	}
	return nil
}

// untilAnswered sends a message until it has been answered right warmAnswers times in a row.
func (s sender) untilAnswered(ctx context.Context, m message, who string) error {
	inARow := 0
	return eventually(ctx, warmTimeout, func(ctx context.Context) error {
		for ; inARow < warmAnswers; inARow++ {
			if fate := s.send(ctx, time.Now(), m); fate.err != "" {
				inARow = 0
				return fmt.Errorf("%s does not answer through the gateway: %s", who, fate.err)
			}
		}
		return nil
	})
}

// toName puts each container under its own name.
func toName(found containers) placing {
	return func(_ pod, container string) (containers, string) { return found, container }
}

func closeAll(all []*metered) {
	for _, c := range all {
		c.Close() //nolint:errcheck // only read
	}
}
