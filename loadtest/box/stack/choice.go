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

// ingresses are the parts of which a box has exactly one.
var ingresses = []string{partIstio, partKourier}

// Ingresses returns the possible values of Choice.Ingress.
func Ingresses() []string { return slices.Clone(ingresses) }

// dispensable are the parts that a box can do without.
var dispensable = []string{partKServe}

// Dispensable returns the parts that a Choice can leave out.
func Dispensable() []string { return slices.Clone(dispensable) }

// Choice says which parts a box has.
type Choice struct {
	// Ingress is the part that is Knative's ingress.
	Ingress string
	// Without lists the parts to leave out.
	Without []string
}

// Parts returns the names of the chosen parts.
func (c Choice) Parts() ([]string, error) {
	for _, name := range c.Without {
		if !slices.Contains(dispensable, name) {
			return nil, fmt.Errorf("--without %.64q: a box can do without %s only", name, strings.Join(dispensable, ", "))
		}
	}
	if !slices.Contains(ingresses, c.Ingress) {
		return nil, fmt.Errorf("--ingress %.64q: want one of %s", c.Ingress, strings.Join(ingresses, ", "))
	}
	if c.Ingress != partIstio && !slices.Contains(c.Without, partKServe) {
		return nil, fmt.Errorf("--ingress %s: KServe's routes on the box need Istio's gateways; add --without %s", c.Ingress, partKServe)
	}
	return slices.DeleteFunc([]string{partKnative, c.Ingress, partKServe}, func(name string) bool { return slices.Contains(c.Without, name) }), nil
}

// renderers returns the functions that make the objects of each part.
func (b *builder) renderers() map[string]func(context.Context) ([]object, error) {
	return map[string]func(context.Context) ([]object, error){
		partKnative: knative,
		partIstio:   istioAndGateways(b.layout.Bin("helm")),
		partKourier: kourier,
		partKServe:  kserve,
	}
}
