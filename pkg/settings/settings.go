// Package settings says how far Libra goes: what the ConfigMap config-libra and the HarvestPolicy libra-system/default say
// about all functions, and what a namespace's HarvestPolicy, or a label of a namespace or a node, says otherwise. All parts
// of Libra that change something follow the same settings, live.
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
	// AgentNamespace is the namespace of the node agents. Libra's other parts are in Namespace.
	AgentNamespace = "libra-node"
	// Agent is the node agents' DaemonSet, and Resizer the resizer's Deployment.
	Agent   = "libra-agent"
	Resizer = "libra-resizer"

	modeKey      = "mode"
	maxModeKey   = "max-mode"
	sourceKey    = "source"
	platformKey  = "platform-namespaces"
	placementKey = "placement"
	exampleKey   = "_example"
)

// Settings hold for every function, namespace and node for which nothing says otherwise.
type Settings struct {
	Mode api.Mode
	// MaxMode is the most that any function's mode may be, even if the function asks for more.
	MaxMode api.Mode
	Source  api.Source
	// CPUReserveMilli is how much of a node's allocatable CPU no container may use beyond
	// its user allocation.
	CPUReserveMilli int64
	// MinLoan is the least time that a loan of CPU must last to be worth it.
	MinLoan time.Duration
	// SafeguardPercent is the percentage of the CPU left to a donor at which its use makes the safeguard give everything back.
	// A donor keeps so much that a right prediction of its CPU is no more than that (section 8.8 of the paper sweeps it).
	SafeguardPercent int64
	// Protect is how much of its weight a pod keeps under source node while it is owed CPU.
	Protect api.Protect
	// Domain is the lending domain that a HarvestPolicy names, or empty for the namespace's own. See DomainOf.
	Domain string
	// Platform are the namespaces whose pods wait for CPU on behalf of the functions.
	Platform Namespaces
	// Placement is how the pod of a request is chosen if no PlacementPolicy says so.
	Placement api.Placement
	Bounds    Bounds
}

// Bounds hold for revisions whose annotations do not say otherwise.
type Bounds struct {
	// MaxCPUMilli is the most CPU that a container may use under source node; 0 is all that the node can give.
	MaxCPUMilli int64
	// Keep is the least that a donor keeps.
	Keep api.Resources
}

// Namespaces are sorted names of namespaces, separated by commas, so that two can be compared.
type Namespaces string

// Has reports whether a namespace is one of them.
func (n Namespaces) Has(namespace string) bool {
	for name := range strings.SplitSeq(string(n), ",") {
		if name == namespace && name != "" {
			return true
		}
	}
	return false
}

// Default changes nothing on the cluster unless an annotation asks for it.
var Default = Settings{
	Mode: api.ModeObserve, MaxMode: api.ModeFull, Source: api.SourceNode, MinLoan: 100 * time.Millisecond, SafeguardPercent: 80, Protect: api.ProtectHalf,
	Platform: "istio-system,knative-serving,kourier-system,kserve", Placement: api.PlacementDefault,
}

// Absent holds without the ConfigMap: nothing is changed, whatever an annotation says. Deleting all of Libra's objects thus
// makes every pod whole.
var Absent = func() Settings {
	s := Default
	s.MaxMode = api.ModeObserve
	return s
}()

// DomainOf returns the lending domain of a namespace's functions as the pool knows it. The settings must be those For the
// namespace. A domain with the namespace's name is its own. Any other has a name that no namespace can have.
func (s Settings) DomainOf(namespace string) string {
	if s.Domain == "" || s.Domain == namespace {
		return namespace
	}
	return "domain/" + s.Domain
}

// ModeOf returns the mode of a revision, or of a pod of it, with the annotations. A mode that cannot be read counts as
// ModeObserve; it is the activator that tells the user.
func (s Settings) ModeOf(annotations map[string]string) api.Mode {
	mode := s.Mode
	if value, ok := annotations[api.ModeAnnotation]; ok {
		mode = api.Mode(value)
	}
	return mode.AtMost(s.MaxMode)
}

// Parse reads a ConfigMap's data like a part of Libra that starts.
func Parse(data map[string]string) (Settings, error) { return Default.Edit(data) }

// Edit returns the settings after a ConfigMap that said s says data. A key that cannot be read stays as it was, except for
// MaxMode, which becomes ModeObserve. The error says what is wrong with all of them, and what holds instead. The other keys
// hold all the same, so that parts of Libra that started at different times differ as little as possible.
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
			// A mistyped attempt to turn something off must not turn on more.
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

// edit sets a setting to a value, or if the value cannot be read to what it was, which the error shows as shown.
func edit[T any](to *T, was T, shown, value string, parse func(string) (T, error)) error {
	parsed, err := parse(value)
	if err != nil {
		*to = was
		return fmt.Errorf("%w; until it is corrected, %.64q applies", err, shown)
	}
	*to = parsed
	return nil
}

// mostMinLoan is longer than Knative lets a request take by default, so with it nothing is lent.
const mostMinLoan = time.Hour

func parseNamespaces(value string) (Namespaces, error) {
	var names []string
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return "", fmt.Errorf("%.64q is not the name of a namespace, want comma-separated names, such as knative-serving,istio-system", name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return Namespaces(strings.Join(slices.Compact(names), ",")), nil
}
