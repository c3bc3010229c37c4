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
	partKServe  = "kserve"
)

// dispensable are the parts that a box can do without.
var dispensable = []string{partKServe}

// Dispensable are the parts that a Choice can leave out.
func Dispensable() []string { return slices.Clone(dispensable) }

// Choice is which of the parts a box has.
type Choice struct {
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
	return slices.DeleteFunc([]string{partKnative, partIstio, partKServe}, func(name string) bool { return slices.Contains(c.Without, name) }), nil
}

// renderers are what make the objects of each part.
func (b *builder) renderers() map[string]func(context.Context) ([]object, error) {
	return map[string]func(context.Context) ([]object, error){
		partKnative: knative,
		partIstio:   istioAndGateways(b.layout.Bin("helm")),
		partKServe:  kserve,
	}
}
