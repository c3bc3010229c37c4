package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/trace"
)

// fortySets is how many sets of the ten make forty functions.
const fortySets = 4

// setUp installs everything that the first phase of a plan needs, and removes what neither
// it nor a later phase needs.
func (e *evaluate) setUp(ctx context.Context, p timePlan) (*scene, error) {
	ph := p[0]
	s := &scene{phase: ph, places: map[string]*demo{}, functions: trace.Mixed, sets: 1, pool: e.pool, plain: plainPool(e.seed, e.corpus)}
	learned, warm := e.learned, e.pace.warm
	switch ph.name {
	case phaseForty:
		s.sets = fortySets
	case phaseMemory:
		s.functions, warm = []string{memoryFunction}, 0
		var err error
		if s.pool, err = memoryPool(e.seed, len(e.pool[memoryOf])); err == nil {
			learned, err = memoryPool(e.seed+learnSeed, e.pace.lessons)
		}
		if err != nil {
			return nil, err
		}
	}
	e.say("%s%s: %s", ph.name, ph.drawn(), strings.Join(ph.places(), ", "))
	if err := e.removeUnneeded(ctx, p); err != nil {
		return nil, err
	}
	if podsEach[ph.name] > 0 {
		// By default, a function's manifest may not say where its pods go.
		if err := e.change(ctx, servingNamespace, featuresConfigMap, spreadFeature, "enabled"); err != nil {
			return nil, err
		}
	}
	lessons, vpa, err := e.bringAll(ctx, s, learned)
	if err != nil {
		return nil, err
	}
	if err := e.describeFunctions(ctx, s); err != nil {
		return nil, err
	}
	if podsEach[ph.name] > 0 {
		if err := e.useAllPods(ctx, s); err != nil {
			return nil, err
		}
	}
	if err := e.learn(ctx, lessons); err != nil {
		return nil, err
	}
	if vpa != nil {
		length := vpaLearns
		if ph.name == phaseMemory {
			length = vpaLearnsAgain
		}
		if err := e.learnVPA(ctx, lessonsAt(vpa, s.functions, learned, 1), length); err != nil {
			return nil, err
		}
	}
	s.capacity = e.capacity
	if ph.name == phaseMemory {
		s.capacity.function = time.Duration(memoryCPU(e.data.Alone, s.pool) * float64(time.Millisecond))
	}
	// Wait until the latest lessons are in a model. CPU use without requests grows with the
	// number of pods, so it is measured again.
	if err := rig.Pause(ctx, settleTime); err != nil {
		return nil, err
	}
	if s.capacity.platform, err = measurePlatform(ctx, e.pace.platform); err == nil {
		err = s.capacity.check()
	}
	if err != nil {
		return nil, err
	}
	if len(e.data.Blocks) == 0 {
		e.data.Platform = s.capacity.platform
	}
	e.say("the node uses %.2f cores without requests; a load of 90 %% is %.1f requests a second", s.capacity.platform, s.capacity.perSecond(loadHigh))
	e.data.Draws = max(e.data.Draws, ph.draw)
	e.say("warming up")
	return s, e.warmUp(ctx, s, warm)
}

// removeUnneeded removes the places that no phase of a plan needs.
func (e *evaluate) removeUnneeded(ctx context.Context, p timePlan) error {
	needed := map[string]bool{}
	for _, ph := range p {
		for _, place := range ph.places() {
			needed[ph.namespaceAt(place)] = true
		}
		if slices.ContainsFunc(ph.combinations, combination.hasBystanders) {
			needed[namespaceOf("", bystanderPlace)] = true
		}
	}
	var unneeded []*demo
	for _, namespace := range slices.Sorted(maps.Keys(e.places)) {
		if !needed[namespace] {
			unneeded = append(unneeded, e.places[namespace])
			delete(e.places, namespace)
			delete(e.sets, namespace)
		}
	}
	if e.hasVPA && !slices.ContainsFunc(p.arms(), func(a arm) bool { return a.vpa }) {
		if err := e.removeVPA(ctx); err != nil {
			return err
		}
		e.hasVPA = false
	}
	return e.remove(ctx, unneeded...)
}

// bringAll installs the functions of a scene that are not there yet, and waits until all
// are ready. It returns Libra's lessons about them, and the place that the autoscaler is to
// learn; nil without one.
func (e *evaluate) bringAll(ctx context.Context, s *scene, learned pool) (lessons []lesson, vpa *demo, err error) {
	var all []int
	for set := 1; set <= s.sets; set++ {
		all = append(all, set)
	}
	type added struct {
		arm  arm
		sets []int
	}
	var brought []added
	for _, a := range s.arms() {
		if s.places[a.place()] != nil {
			continue
		}
		own := e.placeFor(s.phase, a, all...)
		s.places[a.place()] = own
		sets := all[min(e.sets[own.namespace], len(all)):]
		e.places[own.namespace] = own // even if it is only half there
		if err := e.bring(ctx, s.name, a, own, sets...); err != nil {
			return nil, nil, err
		}
		e.sets[own.namespace] = s.sets
		brought = append(brought, added{a, sets})
	}
	if slices.ContainsFunc(s.combinations, combination.hasBystanders) {
		if s.bystander, err = e.bringBystanders(ctx, s.name); err != nil {
			return nil, nil, err
		}
		e.places[s.bystander.namespace] = s.bystander
	}
	for _, b := range brought {
		own := s.places[b.arm.place()]
		if err := e.up(ctx, own); err != nil {
			return nil, nil, err
		}
		if b.arm.perfect {
			if err := e.oracle.learn(own, s.functions, e.data.Alone); err != nil {
				return nil, nil, err
			}
		}
		if b.arm.learns {
			lessons = append(lessons, lessonsAt(own, s.functions, learned, b.sets...)...)
		}
		if b.arm.vpa {
			vpa = own
		}
	}
	if vpa == nil {
		return lessons, nil, nil
	}
	if !e.hasVPA {
		e.hasVPA = true // even if it is only half there
		if err := e.installVPA(ctx); err != nil {
			return nil, nil, err
		}
	}
	return lessons, vpa, e.autoscale(ctx, vpa)
}

// describeFunctions records what the owners of a scene's functions configured.
func (e *evaluate) describeFunctions(ctx context.Context, s *scene) error {
	own := s.places[evaluation.Stock]
	if own == nil {
		// An arm that changes no limit of its functions.
		for _, name := range []string{evaluation.Libra, evaluation.Owners} {
			if own = s.places[name]; own != nil {
				break
			}
		}
	}
	if own == nil {
		return errors.New("nothing is measured under stock or Libra, so the owners' limits are not known")
	}
	described, err := own.describe(ctx, s.functions, s.sets)
	for _, f := range described {
		if !slices.Contains(e.data.Functions, f) {
			e.data.Functions = append(e.data.Functions, f)
		}
	}
	return err
}

// clear removes what earlier evaluations and demos left on the box, except the namespaces
// in keep: the node has room for only one of them.
func (d *demo) clear(ctx context.Context, keep ...string) error {
	var namespaces corev1.NamespaceList
	if err := d.kubectl.get(ctx, &namespaces, "namespaces"); err != nil {
		return err
	}
	var old []*demo
	for _, n := range namespaces.Items {
		if isPlace(n.Name) && !slices.Contains(keep, n.Name) {
			own := *d
			own.namespace = n.Name
			old = append(old, &own)
		}
	}
	return d.remove(ctx, old...)
}

// removeFour removes the functions that end-to-end tests and chaos use.
func (d *demo) removeFour(ctx context.Context) error {
	args := []string{"-n", fourNamespace, "delete", "--ignore-not-found", "deployment/store", "service/store"}
	for _, f := range four.all {
		args = append(args, "services.serving.knative.dev/"+f)
	}
	_, err := d.kubectl.do(ctx, call{timeout: removeTimeout, args: args})
	return err
}

// putBack leaves the box with the stock activator, Libra's parts as they are installed,
// and no functions.
func (e *evaluate) putBack(ctx context.Context) error {
	e.say("putting the stock activator back, and removing the functions")
	errs := []error{e.restoreActivator(ctx), e.oracle.stop(), e.putSettingsBack(ctx)}
	if e.parts != (parts{}) {
		errs = append(errs, e.setParts(ctx, parts{}))
	}
	if e.hasVPA {
		errs = append(errs, e.removeVPA(ctx))
	}
	for _, own := range e.places {
		_, err := own.kubectl.run(ctx, "delete", "--ignore-not-found", "--wait=false", "namespace/"+own.namespace)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
