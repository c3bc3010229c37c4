package stack

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// The parts of the stack.
const (
	partKnative = "knative"
	partIstio   = "istio"
	partKourier = "kourier"
	partKServe  = "kserve"
)

// ingresses are the parts of which a box has one.
var ingresses = []string{partIstio, partKourier}

// Ingresses are those of a Choice.
func Ingresses() []string { return slices.Clone(ingresses) }

// dispensable are the parts that a box can do without.
var dispensable = []string{partKServe}

// Dispensable are the parts that a Choice can leave out.
func Dispensable() []string { return slices.Clone(dispensable) }

// Choice is which of the parts a box has.
type Choice struct {
	// Ingress is Knative's.
	Ingress string
	// Without are those that it does without.
	Without []string
}

// Parts are those that are chosen, by name.
func (c Choice) Parts() ([]string, error) {
	for _, name := range c.Without {
		if !slices.Contains(dispensable, name) {
			return nil, fmt.Errorf("--without %.64q: a box can do without %s alone", name, strings.Join(dispensable, ", "))
		}
	}
	if !slices.Contains(ingresses, c.Ingress) {
		return nil, fmt.Errorf("--ingress %.64q: there is %s", c.Ingress, strings.Join(ingresses, ", "))
	}
	if c.Ingress != partIstio && !slices.Contains(c.Without, partKServe) {
		return nil, fmt.Errorf("--ingress %s: KServe's routes on the box are for Istio's gateways; say --without %s too", c.Ingress, partKServe)
	}
	return slices.DeleteFunc([]string{partKnative, c.Ingress, partKServe}, func(name string) bool { return slices.Contains(c.Without, name) }), nil
}

// renderers are what make the objects of each part.
func (b *builder) renderers() map[string]func(context.Context) ([]object, error) {
	return map[string]func(context.Context) ([]object, error){
		partKnative: knative,
		partIstio:   istioAndGateways(b.layout.Bin("helm")),
		partKourier: kourier,
		partKServe:  kserve,
	}
}
