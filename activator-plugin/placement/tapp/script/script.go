// Package script reads tAPP scripts as the paper writes them, and converts them to placement policies.
package script

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// Options say what the labels in a script stand for in the cluster.
type Options struct {
	// Namespace is the namespace of the policies.
	Namespace string
	// WorkerLabel is the node label whose value is the label of a wrk, and SetLabel the one for a set.
	WorkerLabel, SetLabel string
	// NodeNames says that the labels of wrks are names of nodes.
	NodeNames bool
	// Zones has the zones of controllers. A controller that is not in it is in the zone of its own name.
	Zones map[string]string
}

// Tag is a tag of a script, as a policy.
type Tag struct {
	// Name is the tag's name in the script. The policy's name may differ: names in Kubernetes have no
	// capitals and no underscores.
	Name   string
	Policy v1alpha1.PlacementPolicy
}

// Convert makes a policy of each tag of a script. An error lists all that is wrong, each with its line.
func Convert(text []byte, o Options) ([]Tag, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("the script is not YAML: %w", err)
	}
	if len(document.Content) == 0 {
		return nil, errors.New(`the script is empty, want tags such as "- default: [...]"`)
	}
	r := &reader{Options: o}
	tags := r.script(document.Content[0])
	return tags, errors.Join(r.errs...)
}

type reader struct {
	Options
	errs []error
}

func (r *reader) refuse(at *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("line %d: "+format, append([]any{at.Line}, args...)...))
}

// field is one field of a mapping.
type field struct {
	key   string
	at    *yaml.Node
	value *yaml.Node
}

func (r *reader) fields(n *yaml.Node, of string) []field {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		r.refuse(n, "%s is %q, want keys with values", of, n.Value)
		return nil
	}
	var fields []field
	for i := 0; i+1 < len(n.Content); i += 2 {
		f := field{n.Content[i].Value, n.Content[i], n.Content[i+1]}
		if f.value.Kind == yaml.AliasNode {
			f.value = f.value.Alias
		}
		fields = append(fields, f)
	}
	return fields
}

// items returns the entries of a list, and refuses anything else.
func (r *reader) items(n *yaml.Node, of string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		r.refuse(n, "%s: want a list with at least one entry", of)
		return nil
	}
	return n.Content
}

// script reads a list of tags or, as in APP, a mapping of them.
func (r *reader) script(n *yaml.Node) []Tag {
	entries := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		entries = n.Content
	}
	var tags []Tag
	names := map[string]string{}
	for _, entry := range entries {
		var of []field // the tags of the entry
		var strategy, followup *field
		for _, f := range r.fields(entry, "a tag") {
			switch f.key {
			case "strategy":
				strategy = &f
			case "followup":
				followup = &f
			default:
				of = append(of, f)
			}
		}
		if len(of) == 0 {
			r.refuse(entry, "the entry has no tag, want the name of a tag with a list of blocks, such as %q", "- default: [...]")
		}
		if len(of) > 1 && (strategy != nil || followup != nil) {
			r.refuse(entry, "strategy and followup apply to one tag, but the entry has %d, want a list entry for each tag", len(of))
		}
		for _, f := range of {
			tag := r.tag(f, strategy, followup)
			if other, taken := names[tag.Policy.Name]; taken {
				r.refuse(f.at, "the tags %s and %s are both called %s in Kubernetes, want names that differ in more than capitals and underscores", other, tag.Name, tag.Policy.Name)
			}
			names[tag.Policy.Name] = tag.Name
			tags = append(tags, tag)
		}
	}
	return tags
}

func (r *reader) tag(f field, strategy, followup *field) Tag {
	t := Tag{Name: f.key}
	t.Policy.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "PlacementPolicy"}
	t.Policy.Name, t.Policy.Namespace = nameOf(f.key), r.Namespace
	if len(validation.IsDNS1123Label(t.Policy.Name)) > 0 {
		r.refuse(f.at, "the tag %s would be called %q in Kubernetes, want letters, digits and - or _ in between", t.Name, t.Policy.Name)
	}
	spec := &t.Policy.Spec
	ofTag := func(f *field) {
		switch {
		case f == nil:
		case f.key == "strategy":
			spec.Strategy = r.strategy(*f)
		default:
			spec.Followup = r.followup(*f)
		}
	}
	ofTag(strategy)
	ofTag(followup)
	for _, item := range r.items(f.value, "tag "+f.key) {
		fields := r.fields(item, "a block")
		if len(fields) > 0 && !slices.ContainsFunc(fields, func(f field) bool { return f.key != "strategy" && f.key != "followup" }) {
			for i := range fields {
				ofTag(&fields[i])
			}
			continue
		}
		spec.Blocks = append(spec.Blocks, r.block(item, fields, ofTag))
	}
	// Validation would also refuse what is missing because it could not be read.
	if len(r.errs) > 0 {
		return t
	}
	for _, err := range tapp.Validate(t.Policy.Name, spec) {
		r.refuse(f.at, "tag %s: %w", t.Name, err)
	}
	return t
}

// block reads a block. Its followup, which the paper writes there too, belongs to its tag.
func (r *reader) block(at *yaml.Node, fields []field, ofTag func(*field)) v1alpha1.Block {
	var b v1alpha1.Block
	var tolerance *field
	for _, f := range fields {
		switch f.key {
		case "controller":
			zone := f.value.Value
			if named, ok := r.Zones[zone]; ok {
				zone = named
			}
			b.Controller = &v1alpha1.Controller{Zone: zone}
		case "topology_tolerance":
			tolerance = &f
		case "workers":
			for _, item := range r.items(f.value, "workers") {
				b.Workers = append(b.Workers, r.worker(item))
			}
		case "strategy":
			b.Strategy = r.strategy(f)
		case "invalidate":
			b.Invalidate = r.invalidate(f)
		case "followup":
			ofTag(&f)
		default:
			r.refuse(f.at, "a block has no field %q, want controller, topology_tolerance, workers, strategy, invalidate or followup", f.key)
		}
	}
	if b.Workers == nil {
		r.refuse(at, "the block has no workers, want a list of wrk and set")
	}
	switch {
	case b.Controller != nil:
		b.Controller.TopologyTolerance = v1alpha1.ToleranceAll
		if tolerance != nil {
			b.Controller.TopologyTolerance = oneOf(r, *tolerance, map[string]v1alpha1.TopologyTolerance{
				"all": v1alpha1.ToleranceAll, "same": v1alpha1.ToleranceSame, "none": v1alpha1.ToleranceNone,
			})
		}
	case tolerance != nil:
		r.refuse(tolerance.at, "topology_tolerance has no controller to apply to, want a controller in the same block")
	}
	return b
}

func (r *reader) worker(n *yaml.Node) v1alpha1.Worker {
	var w v1alpha1.Worker
	fields := r.fields(n, "a worker")
	set := slices.ContainsFunc(fields, func(f field) bool { return f.key == "set" })
	for _, f := range fields {
		switch {
		case f.key == "wrk" && set:
			r.refuse(f.at, "a worker is either a wrk or a set, want a list entry for each")
		case f.key == "wrk" && f.value.Value == "":
			r.refuse(f.at, "the wrk has no label, want one")
		case f.key == "wrk" && r.NodeNames:
			w.Node = f.value.Value
		case f.key == "wrk":
			w.Set = &v1alpha1.NodeSet{MatchLabels: map[string]v1alpha1.LabelValue{r.WorkerLabel: v1alpha1.LabelValue(f.value.Value)}}
		case f.key == "set":
			w.Set = &v1alpha1.NodeSet{}
			if f.value.Value != "" {
				w.Set.MatchLabels = map[string]v1alpha1.LabelValue{r.SetLabel: v1alpha1.LabelValue(f.value.Value)}
			}
		case f.key == "invalidate":
			w.Invalidate = r.invalidate(f)
		case f.key == "strategy" && set:
			w.Strategy = r.strategy(f)
		case f.key == "strategy":
			r.refuse(f.at, "a wrk cannot have a strategy, want strategy beside workers, where it applies to the block")
		default:
			r.refuse(f.at, "a worker has no field %q, want wrk or set, invalidate, and strategy with a set; fields of the block belong beside workers", f.key)
		}
	}
	if w.Node == "" && w.Set == nil {
		r.refuse(n, "the worker is neither a wrk nor a set")
	}
	return w
}

func (r *reader) strategy(f field) v1alpha1.Strategy {
	return oneOf(r, f, map[string]v1alpha1.Strategy{
		"best_first": v1alpha1.BestFirst, "random": v1alpha1.Random, "platform": v1alpha1.Platform,
	})
}

func (r *reader) followup(f field) v1alpha1.Followup {
	return oneOf(r, f, map[string]v1alpha1.Followup{"default": v1alpha1.FollowupDefault, "fail": v1alpha1.FollowupFail})
}

func oneOf[T ~string](r *reader, f field, accepted map[string]T) T {
	value, ok := accepted[f.value.Value]
	if !ok {
		var want []string
		for name := range accepted {
			want = append(want, name)
		}
		slices.Sort(want)
		r.refuse(f.value, "%s is %q, want %s", f.key, f.value.Value, strings.Join(want, " or "))
	}
	return value
}

// ofValue matches an invalidate with a number, such as "capacity_used 50%".
var ofValue = regexp.MustCompile(`^(capacity_used|max_concurrent_invocations)\s*:?\s*(\d{1,9})\s*(%?)$`)

func (r *reader) invalidate(f field) *v1alpha1.Invalidate {
	said := strings.TrimSpace(f.value.Value)
	// With a colon, on a line of its own, it is a mapping.
	if n := f.value; n.Kind == yaml.MappingNode && len(n.Content) == 2 {
		said = n.Content[0].Value + " " + n.Content[1].Value
	}
	parts := ofValue.FindStringSubmatch(said)
	switch {
	case said == "overload":
		return &v1alpha1.Invalidate{Overload: true}
	case parts != nil && parts[1] == "capacity_used":
		return &v1alpha1.Invalidate{CapacityUsedPercent: number(parts[2])}
	case parts != nil && parts[3] == "":
		return &v1alpha1.Invalidate{MaxConcurrentInvocations: number(parts[2])}
	}
	r.refuse(f.value, "invalidate is %q, want overload, capacity_used 50%% or max_concurrent_invocations 100", said)
	return nil
}

// number parses at most nine digits.
func number(digits string) *int32 {
	n, _ := strconv.ParseInt(digits, 10, 32)
	return ptr.To(int32(n))
}

// nameOf converts a tag to a name that Kubernetes accepts.
func nameOf(tag string) string { return strings.ReplaceAll(strings.ToLower(tag), "_", "-") }
