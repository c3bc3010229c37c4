package tapp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

const (
	maxBlocks = 16
	// maxWorkers is how many bits a program has for the workers that a node is among.
	maxWorkers = 64
	maxOfSet   = 16 // labels, and requirements, of a set of nodes
	maxValues  = 64
	// maxValuesInAll bounds how long it takes to look at a policy, which happens again whenever nodes change.
	maxValuesInAll = 1024
	// mostTold is how many mistakes are told of at a time.
	mostTold = 10
	// mostText is how many bytes they may take. An Event has room for that, and for what stays in force.
	mostText = api.MaxNote - 200
	// maxConcurrent is more than is in flight on any node.
	maxConcurrent = 1_000_000
)

var (
	strategies = []v1alpha1.Strategy{
		v1alpha1.BestFirst, v1alpha1.Random, v1alpha1.Platform, v1alpha1.Coverage, v1alpha1.Hash,
		v1alpha1.RoundRobin, v1alpha1.JSQ, v1alpha1.MWS, v1alpha1.LeastPressure,
	}
	ofBlocks  = []v1alpha1.Strategy{v1alpha1.BestFirst, v1alpha1.Random, v1alpha1.Platform}
	followups = []v1alpha1.Followup{v1alpha1.FollowupDefault, v1alpha1.FollowupFail}
	operators = map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	tolerances = []v1alpha1.TopologyTolerance{v1alpha1.ToleranceAll, v1alpha1.ToleranceSame, v1alpha1.ToleranceNone}
	outsides   = []v1alpha1.Outside{v1alpha1.OutsideForward, v1alpha1.OutsideStay}
)

// Validate returns all that is wrong with the policy of that name, each with the form that would be
// accepted. The API server refuses most of it already, if it has our definition of the object.
func Validate(name string, spec *v1alpha1.PlacementPolicySpec) field.ErrorList {
	v := &validator{}
	root := field.NewPath("spec")
	oneOf(v, root.Child("strategy"), spec.Strategy, ofBlocks)
	oneOf(v, root.Child("followup"), spec.Followup, followups)
	if name == v1alpha1.DefaultName && spec.Followup == v1alpha1.FollowupDefault {
		v.add(field.Invalid(root.Child("followup"), spec.Followup, "no other policy follows the policy default, want fail or nothing"))
	}
	blocks := root.Child("blocks")
	if values := valuesOf(spec); values > maxValuesInAll {
		v.add(field.Invalid(blocks, values, fmt.Sprintf("too many labels, values of labels and requirements in the sets of all workers, want at most %d", maxValuesInAll)))
		return v.errs
	}
	v.size(blocks, len(spec.Blocks), 1, maxBlocks)
	workers := 0
	for i := range spec.Blocks {
		workers += len(spec.Blocks[i].Workers)
		v.block(blocks.Index(i), &spec.Blocks[i])
	}
	if workers > maxWorkers {
		v.add(field.Invalid(blocks, workers, fmt.Sprintf("too many workers, want at most %d in all: a set is one, however many nodes it has", maxWorkers)))
	}
	return v.errs
}

// valuesOf counts the values of labels that a policy names, and the requirements that name none.
func valuesOf(spec *v1alpha1.PlacementPolicySpec) (values int) {
	for i := range spec.Blocks {
		for _, w := range spec.Blocks[i].Workers {
			if w.Set == nil {
				continue
			}
			values += len(w.Set.MatchLabels)
			for _, e := range w.Set.MatchExpressions {
				values += max(1, len(e.Values))
			}
		}
	}
	return values
}

// refusal makes one error of mistakes. It is kept, logged and written to the policy's status, so it names only the first few,
// and is cut: a mistake names the value, which may be as long as an object.
func refusal(errs field.ErrorList) error {
	told := errs[:min(len(errs), mostTold)].ToAggregate()
	if told == nil {
		return nil
	}
	more := ""
	if n := len(errs) - mostTold; n > 0 {
		more = fmt.Sprintf(", and %d more mistakes", n)
	}
	return errors.New(shortened(told.Error(), mostText-len(more)) + more)
}

// shortened returns at most so many bytes of a text, with an ellipsis where it ends early.
func shortened(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const ellipsis = "…"
	return strings.ToValidUTF8(text[:max(0, most-len(ellipsis))], "") + ellipsis
}

type validator struct{ errs field.ErrorList }

func (v *validator) add(err *field.Error) { v.errs = append(v.errs, err) }

func (v *validator) size(at *field.Path, size, least, most int) {
	if size < least || size > most {
		v.add(field.Invalid(at, size, fmt.Sprintf("want %d to %d", least, most)))
	}
}

// oneOf also accepts the empty value, which is the default.
func oneOf[T ~string](v *validator, at *field.Path, value T, accepted []T) {
	if value != "" && !sets.New(accepted...).Has(value) {
		v.add(field.NotSupported(at, value, accepted))
	}
}

func (v *validator) block(at *field.Path, b *v1alpha1.Block) {
	if c := b.Controller; c != nil {
		zone := at.Child("controller", "zone")
		if problems := validation.IsValidLabelValue(c.Zone); c.Zone == "" || len(problems) > 0 {
			v.add(field.Invalid(zone, c.Zone, "want a value of the label topology.kubernetes.io/zone, such as eu-west-1a"))
		}
		oneOf(v, at.Child("controller", "topologyTolerance"), c.TopologyTolerance, tolerances)
		oneOf(v, at.Child("controller", "outside"), c.Outside, outsides)
	}
	workers := at.Child("workers")
	v.size(workers, len(b.Workers), 1, maxWorkers)
	for i := range b.Workers {
		v.worker(workers.Index(i), &b.Workers[i])
	}
	oneOf(v, at.Child("strategy"), b.Strategy, strategies)
	v.invalidate(at.Child("invalidate"), b.Invalidate)
}

func (v *validator) worker(at *field.Path, w *v1alpha1.Worker) {
	switch {
	case (w.Node != "") == (w.Set != nil):
		v.add(field.Invalid(at, w.Node, "want either node or set; set: {} is all nodes"))
	case w.Set != nil:
		_, errs := selectorOf(at.Child("set"), w.Set)
		v.errs = append(v.errs, errs...)
	default:
		if problems := validation.IsDNS1123Subdomain(w.Node); len(problems) > 0 {
			v.add(field.Invalid(at.Child("node"), w.Node, "want the name of a node, such as worker-1"))
		}
		if w.Strategy != "" {
			v.add(field.Invalid(at.Child("strategy"), w.Strategy, "a strategy chooses within a set, want none beside node"))
		}
	}
	oneOf(v, at.Child("strategy"), w.Strategy, strategies)
	v.invalidate(at.Child("invalidate"), w.Invalidate)
}

func (v *validator) invalidate(at *field.Path, i *v1alpha1.Invalidate) {
	if i == nil {
		return
	}
	if i.CapacityUsedPercent == nil && i.MaxConcurrentInvocations == nil && !i.Overload {
		v.add(field.Required(at, "want at least one of capacityUsedPercent, maxConcurrentInvocations and overload: true"))
	}
	v.between(at.Child("capacityUsedPercent"), i.CapacityUsedPercent, 100)
	v.between(at.Child("maxConcurrentInvocations"), i.MaxConcurrentInvocations, maxConcurrent)
}

func (v *validator) between(at *field.Path, value *int32, most int32) {
	if value != nil && (*value < 1 || *value > most) {
		v.add(field.Invalid(at, *value, fmt.Sprintf("want 1 to %d", most)))
	}
}

// selectorOf returns the selector for the labels of a set's nodes.
func selectorOf(at *field.Path, set *v1alpha1.NodeSet) (labels.Selector, field.ErrorList) {
	v := &validator{}
	v.size(at.Child("matchLabels"), len(set.MatchLabels), 0, maxOfSet)
	v.size(at.Child("matchExpressions"), len(set.MatchExpressions), 0, maxOfSet)
	selector := labels.NewSelector()
	for _, key := range slices.Sorted(maps.Keys(set.MatchLabels)) {
		selector = v.require(selector, at.Child("matchLabels").Key(key), key, metav1.LabelSelectorOpIn, []string{string(set.MatchLabels[key])})
	}
	for i, e := range set.MatchExpressions {
		at := at.Child("matchExpressions").Index(i)
		v.size(at.Child("values"), len(e.Values), 0, maxValues)
		selector = v.require(selector, at, e.Key, e.Operator, e.Values)
	}
	return selector, v.errs
}

// require adds to a selector what a label must be.
func (v *validator) require(to labels.Selector, at *field.Path, key string, operator metav1.LabelSelectorOperator, values []string) labels.Selector {
	op, ok := operators[operator]
	if !ok {
		v.add(field.NotSupported(at.Child("operator"), operator, slices.Sorted(maps.Keys(operators))))
		return to
	}
	before := len(v.errs)
	for _, problem := range validation.IsQualifiedName(key) {
		v.add(field.Invalid(at, key, "want the key of a node label: "+problem))
	}
	for _, value := range values {
		for _, problem := range validation.IsValidLabelValue(value) {
			v.add(field.Invalid(at, value, "want a value of a node label: "+problem))
		}
	}
	switch listed := op == selection.In || op == selection.NotIn; {
	case listed && len(values) == 0:
		v.add(field.Required(at.Child("values"), "want at least one with In and NotIn"))
	case !listed && len(values) > 0:
		v.add(field.Forbidden(at.Child("values"), "want none with Exists and DoesNotExist"))
	}
	if len(v.errs) > before {
		return to
	}
	r, err := labels.NewRequirement(key, op, values)
	if err != nil {
		v.add(field.Invalid(at, key, err.Error()))
		return to
	}
	return to.Add(*r)
}
