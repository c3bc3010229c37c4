package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

const (
	// nodePrefix starts the names of placements under the source node. Names under owners have no prefix.
	nodePrefix = "node_"
	// stockPlacement is the name of the placement stock: the plain name is that of the arm without Libra.
	stockPlacement = "stock_placement"

	// placementTimeout bounds how long it takes until the activator follows another placement. Its watch
	// reports the change at once.
	placementTimeout = 30 * time.Second
	// placementProbes is how many requests it takes to show which placement it follows.
	placementProbes = 3

	featuresConfigMap = "config-features"
	spreadFeature     = "kubernetes.podspec-topologyspreadconstraints"
)

// placements are Libra under each policy that says which pod a request goes to. Those of a source share
// their pods: they differ only in a setting that the activator follows.
var placements = slices.Concat(placementsUnder(api.SourceOwners), placementsUnder(api.SourceNode))

// placementsInOrder are all placements, in the order of the report: first the one that the others are
// compared with.
var placementsInOrder = []api.Placement{
	api.PlacementHash, api.PlacementCoverage, api.PlacementRoundRobin, api.PlacementJoinShortest, api.PlacementMinimumWorkerSet,
	api.PlacementDefault, api.PlacementLeastPressure, api.PlacementRandom, api.PlacementStock,
}

func placementsUnder(source api.Source) []arm {
	at, of := evaluation.Owners, ""
	if source == api.SourceNode {
		at, of = evaluation.Libra, " (node)"
	}
	under := func(name, title, about string, placement api.Placement) arm {
		return arm{
			Arm:       evaluation.Arm{Name: name, Base: placementName(source, api.PlacementHash), Title: title + of, About: about},
			functions: "owners", at: at, learns: true, source: source, placement: placement,
		}
	}
	var all []arm
	for _, p := range placementsInOrder {
		all = append(all, under(placementName(source, p), string(p), fmt.Sprintf("Libra with the source %s and the placement %s.", source, p), p))
	}
	again := under(againName(source), "hash again", "The same placement measured again: any difference is noise.", api.PlacementHash)
	return slices.Insert(all, 1, again)
}

// placementName returns the name of a placement's arm.
func placementName(source api.Source, p api.Placement) string {
	name := strings.ReplaceAll(string(p), "-", "_")
	if p == api.PlacementStock {
		name = stockPlacement
	}
	if source == api.SourceNode {
		return nodePrefix + name
	}
	return name
}

// againName returns the name of the arm that repeats hash.
func againName(source api.Source) string {
	return placementName(source, api.PlacementHash) + evaluation.AgainSuffix
}

// podsEach is the number of pods of each function in a phase; 0 means one, on any node.
var podsEach = map[string]int{phaseTwoEach: 2, phaseFourEach: 4}

// spread returns the patches that give each function this many pods, evenly over the nodes that take any.
func spread(pods int) []kustomizePatch {
	service := kustomizeTarget{Kind: "Service", Group: "serving.knative.dev"}
	constraint := fmt.Sprintf(`- op: add
  path: /spec/template/spec/topologySpreadConstraints
  value:
  - maxSkew: 1
    topologyKey: %s
    whenUnsatisfiable: DoNotSchedule
    # A node that none may go to would have the fewest.
    nodeTaintsPolicy: Honor
    matchLabelKeys: [%s]
    labelSelector: {matchExpressions: [{key: %s, operator: Exists}]}
`, corev1.LabelHostname, serving.RevisionLabelKey, serving.ServiceLabelKey)
	scale := annotate(autoscaling.MinScaleAnnotationKey, fmt.Sprint(pods)) + annotate(autoscaling.MaxScaleAnnotationKey, fmt.Sprint(pods))
	return []kustomizePatch{{Target: service, Patch: scale}, {Target: service, Patch: constraint}}
}

// spreadOver returns an error that names the functions whose pods are not spread evenly over the workers.
func (s services) spreadOver(workers []string, pods []corev1.Pod) error {
	on := map[string]map[string]int{}
	for _, p := range pods {
		f := p.Labels[serving.ServiceLabelKey]
		if on[f] == nil {
			on[f] = map[string]int{}
		}
		on[f][p.Spec.NodeName]++
	}
	var wrong []error
	for _, f := range s.all {
		least, most := s.pods(), 0
		for _, w := range workers {
			least, most = min(least, on[f][w]), max(most, on[f][w])
		}
		if most-least > 1 {
			wrong = append(wrong, fmt.Errorf("%s has its pods on %v; no worker may have two more than another", f, on[f]))
		}
	}
	return errors.Join(wrong...)
}

// setting is a key of a ConfigMap that an evaluation changes, with its earlier value.
type setting struct {
	namespace, configMap, key string
	was                       *string // nil means none
}

// change sets a key, and keeps its earlier value for putSettingsBack.
func (e *evaluate) change(ctx context.Context, namespace, configMap, key, value string) error {
	same := func(s setting) bool {
		return s.namespace == namespace && s.configMap == configMap && s.key == key
	}
	if !slices.ContainsFunc(e.changed, same) {
		var now corev1.ConfigMap
		if err := e.kubectl.get(ctx, &now, "-n", namespace, "configmap", configMap); err != nil {
			return err
		}
		s := setting{namespace: namespace, configMap: configMap, key: key}
		if was, ok := now.Data[key]; ok {
			s.was = &was
		}
		e.changed = append(e.changed, s)
	}
	return e.setting(ctx, namespace, configMap, key, &value)
}

// setting sets a key, or removes it if value is nil.
func (d *demo) setting(ctx context.Context, namespace, configMap, key string, value *string) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]*string{key: value}})
	if err != nil {
		return err
	}
	_, err = d.kubectl.run(ctx, "-n", namespace, "patch", "configmap", configMap, "--type=merge", "--patch="+string(patch))
	return err
}

// putSettingsBack restores all settings that were changed.
func (e *evaluate) putSettingsBack(ctx context.Context) error {
	var errs []error
	for _, s := range slices.Backward(e.changed) {
		errs = append(errs, e.setting(ctx, s.namespace, s.configMap, s.key, s.was))
	}
	return errors.Join(errs...)
}

// useAllPods verifies that each function has pods on all workers, and has requests go to them in turn, so
// that each pod gets warm and Libra learns from all of them.
func (e *evaluate) useAllPods(ctx context.Context, s *scene) error {
	for _, own := range s.places {
		if err := own.whole(ctx, false); err != nil {
			return err
		}
		var pods corev1.PodList
		if err := e.kubectl.get(ctx, &pods, "pods", "-n", own.namespace, "-l", serving.ServiceLabelKey); err != nil {
			return err
		}
		if err := own.services.spreadOver(e.workers, pods.Items); err != nil {
			return err
		}
	}
	e.placement = "" // placeBy verifies it when it matters
	return e.change(ctx, settings.Namespace, settings.ConfigMap, "placement", string(api.PlacementRoundRobin))
}

// placeBy has the activator follow a placement, and waits until it does: until it has placed
// placementProbes requests to a place, and no other placement has placed any.
func (e *evaluate) placeBy(ctx context.Context, s *scene, own *demo, p api.Placement) error {
	if e.placement == p {
		return nil
	}
	e.placement = ""
	if err := e.change(ctx, settings.Namespace, settings.ConfigMap, "placement", string(p)); err != nil {
		return err
	}
	sender := own.newSender()
	defer sender.http.CloseIdleConnections()
	f := s.functions[0]
	probe := message{host: own.targets.hosts[f], input: s.pool.smallest()[f]}
	err := eventually(ctx, placementTimeout, func(ctx context.Context) error {
		before, err := own.choices(ctx)
		if err != nil {
			return err
		}
		for range placementProbes {
			if fate := sender.send(ctx, time.Now(), probe); fate.err != "" {
				return fmt.Errorf("%s does not answer: %s", f, fate.err)
			}
		}
		after, err := own.choices(ctx)
		if err != nil {
			return err
		}
		return after.since(before).only(p, placementProbes)
	})
	if err == nil {
		e.placement = p
	}
	return err
}

// choices are the activators' counters, since they started, of how they place requests.
type choices struct {
	by                map[string]map[string]float64 // requests, by placement and outcome
	promised, granted float64                       // core-seconds
}

func (d *demo) choices(ctx context.Context) (choices, error) {
	counted, err := d.counters(ctx, servingNamespace, activatorSelector, api.ActivatorMetricsPort)
	return choicesOf(counted), err
}

func choicesOf(counted []counter) choices {
	c := choices{by: map[string]map[string]float64{}}
	for _, n := range counted {
		switch {
		case n.name == "libra_placement_choices_total":
			by := n.labels["policy"]
			if c.by[by] == nil {
				c.by[by] = map[string]float64{}
			}
			c.by[by][n.labels["outcome"]] += n.value
		case n.name == "libra_placement_cpu_seconds_total" && n.labels["kind"] == "promised":
			c.promised += n.value
		case n.name == "libra_placement_cpu_seconds_total" && n.labels["kind"] == "granted":
			c.granted += n.value
		}
	}
	return c
}

// of returns the choices of one placement.
func (c choices) of(p api.Placement) evaluation.Placed {
	return evaluation.Placed{Outcomes: c.by[string(p)], Promised: c.promised, Granted: c.granted}
}

// since returns what was added since an earlier reading.
func (c choices) since(before choices) choices {
	added := choices{by: map[string]map[string]float64{}}
	for by := range c.by {
		if of := c.of(api.Placement(by)).Since(before.of(api.Placement(by))); len(of.Outcomes) > 0 {
			added.by[by] = of.Outcomes
		}
	}
	return added
}

// only returns an error unless all of the requests were placed by p. With stock nothing is chosen or
// counted.
func (c choices) only(p api.Placement, requests int) error {
	sum, others := 0.0, []string{}
	for by, outcomes := range c.by {
		if by != string(p) {
			others = append(others, by)
			continue
		}
		for _, n := range outcomes {
			sum += n
		}
	}
	switch want := float64(requests); {
	case len(others) > 0:
		slices.Sort(others)
		return fmt.Errorf("the activator places requests by %s, want %s", strings.Join(others, ", "), p)
	case p == api.PlacementStock || sum >= want:
		return nil
	default:
		return fmt.Errorf("the activator placed %v of %v requests by %s: do their functions have several ready pods?", sum, want, p)
	}
}
