// Package settings tells how far Libra goes: what the ConfigMap config-libra and the
// HarvestPolicy libra-system/default say of all functions, and what a namespace's
// HarvestPolicy, or a label of a namespace or a node, says otherwise. All parts of Libra
// that change something follow the same settings, live.
package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"libra.dev/libra/pkg/api"
)

const (
	// Namespace and ConfigMap name the object that holds the settings.
	Namespace = "libra-system"
	ConfigMap = "config-libra"
	// AgentNamespace is where the node agents are, and Namespace where Libra's other parts.
	AgentNamespace = "libra-node"
	// Agent is the DaemonSet there, and Resizer the resizer's Deployment.
	Agent   = "libra-agent"
	Resizer = "libra-resizer"

	modeKey      = "mode"
	maxModeKey   = "max-mode"
	sourceKey    = "source"
	platformKey  = "platform-namespaces"
	placementKey = "placement"
	exampleKey   = "_example"
)

// Settings hold for every function, namespace and node that does not say otherwise.
type Settings struct {
	Mode api.Mode
	// MaxMode is how far Libra goes at most, also with a function that says more.
	MaxMode api.Mode
	Source  api.Source
	// CPUReserveMilli is how much of a node's allocatable CPU no container may use beyond
	// its user allocation.
	CPUReserveMilli int64
	// MinLoan is the least time that a loan of CPU must last to pay.
	MinLoan time.Duration
	// SafeguardPercent is how much of what a donor of CPU was left it uses when it gets everything back, in percent. A
	// right prediction of CPU is no more than that of what a donor keeps (section 8.8 of the paper sweeps it).
	SafeguardPercent int64
	// Domain is the lending domain that a HarvestPolicy names; empty is the namespace's own. See DomainOf.
	Domain string
	// Platform are the namespaces whose pods wait for CPU on behalf of the functions.
	Platform Namespaces
	// Placement is how the pod of a request is chosen where no PlacementPolicy says it.
	Placement api.Placement
	Bounds    Bounds
}

// Bounds hold for revisions without an annotation that says otherwise.
type Bounds struct {
	// MaxCPUMilli is the most CPU that a container may use under source node; 0 is all that the node can give.
	MaxCPUMilli int64
	// Keep is what a donor keeps at least.
	Keep api.Resources
}

// Namespaces are names of namespaces, sorted, with commas between: two can be compared.
type Namespaces string

// Has says whether a namespace is among them.
func (n Namespaces) Has(namespace string) bool {
	for name := range strings.SplitSeq(string(n), ",") {
		if name == namespace && name != "" {
			return true
		}
	}
	return false
}

// Default changes nothing on the cluster.
var Default = Settings{
	Mode: api.ModeObserve, MaxMode: api.ModeFull, Source: api.SourceNode, MinLoan: 100 * time.Millisecond, SafeguardPercent: 80,
	Platform: "istio-system,knative-serving,kourier-system,kserve", Placement: api.PlacementDefault,
}

// Absent hold without the ConfigMap: nothing is changed, whatever an annotation says. Who deletes all that Libra is made of
// has every pod whole then.
var Absent = func() Settings {
	s := Default
	s.MaxMode = api.ModeObserve
	return s
}()

// DomainOf is the lending domain of a namespace's functions, which these settings are For, as the pool knows it. One of
// the namespace's name is its own. No namespace is called as any other is.
func (s Settings) DomainOf(namespace string) string {
	if s.Domain == "" || s.Domain == namespace {
		return namespace
	}
	return "domain/" + s.Domain
}

// ModeOf is the mode of a revision, or of a pod of it, with the annotations. One that cannot be
// read is ModeObserve; who tells the user is the activator.
func (s Settings) ModeOf(annotations map[string]string) api.Mode {
	mode := s.Mode
	if value, ok := annotations[api.ModeAnnotation]; ok {
		mode = api.Mode(value)
	}
	return mode.AtMost(s.MaxMode)
}

// Parse reads a ConfigMap's data as a part of Libra does that starts.
func Parse(data map[string]string) (Settings, error) { return Default.Edit(data) }

// Edit are the settings after a ConfigMap that said s says data. A key that cannot be read
// stays what it was, but for MaxMode, which is ModeObserve then. The error says of all of them
// at once what is wrong and what holds; the other keys hold all the same, so that parts of Libra
// that began at different times differ by no more than they must.
func (s Settings) Edit(data map[string]string) (Settings, error) {
	edited := Default
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(data)) {
		value := strings.TrimSpace(data[key])
		var err error
		switch key {
		case modeKey:
			err = edit(&edited.Mode, s.Mode, string(s.Mode), value, api.ParseMode)
		case maxModeKey:
			// Who means to turn something off and mistypes it is not to be answered with more.
			err = edit(&edited.MaxMode, api.ModeObserve, string(api.ModeObserve), value, api.ParseMode)
		case sourceKey:
			err = edit(&edited.Source, s.Source, string(s.Source), value, api.ParseSource)
		case platformKey:
			err = edit(&edited.Platform, s.Platform, string(s.Platform), value, parseNamespaces)
		case placementKey:
			err = edit(&edited.Placement, s.Placement, string(s.Placement), value, api.ParsePlacement)
		case exampleKey:
		default:
			err = fmt.Errorf("there is no such setting, want %s, %s, %s, %s or %s", modeKey, maxModeKey, sourceKey, platformKey, placementKey)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("key %.64q of ConfigMap %s/%s: %w", key, Namespace, ConfigMap, err))
		}
	}
	return edited, errors.Join(errs...)
}

// edit sets one setting to a value, or to what it was, which is shown, when it cannot be read.
func edit[T any](to *T, was T, shown, value string, parse func(string) (T, error)) error {
	parsed, err := parse(value)
	if err != nil {
		*to = was
		return fmt.Errorf("%w; until then it is %.64q", err, shown)
	}
	*to = parsed
	return nil
}

// mostCPU is more than any node has, in cores.
const mostCPU = 1 << 20

// mostMinLoan is longer than Knative lets a request take by default, so that nothing is lent.
const mostMinLoan = time.Hour

func parseNamespaces(value string) (Namespaces, error) {
	var names []string
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return "", fmt.Errorf("%.64q is no name of a namespace, want names with commas between, such as knative-serving,istio-system", name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return Namespaces(strings.Join(slices.Compact(names), ",")), nil
}
