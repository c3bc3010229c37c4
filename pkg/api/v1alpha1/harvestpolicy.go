package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HarvestPolicy says how far Libra goes with the functions of its namespace. Its name is default: a namespace has one
// at most. That of the namespace libra-system is the cluster's default: what it says holds for each namespace whose own
// policy does not say it. Then come the ConfigMap config-libra, for mode, max-mode and source, and what is built in. An
// annotation of a revision comes before all of them. A change is in force within moments, without a new revision.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=libra,shortName=hvp
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Max Mode",type=string,JSONPath=`.spec.maxMode`
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source`
// +kubebuilder:printcolumn:name="Max CPU",type=string,JSONPath=`.spec.maxCPU`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="In Force",type=string,JSONPath=`.status.conditions[?(@.type=="InForce")].status`,description="False while something bounds what the policy says"
// +kubebuilder:printcolumn:name="Functions",type=integer,JSONPath=`.status.functions`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`,priority=1
// +kubebuilder:printcolumn:name="Min Loan",type=string,JSONPath=`.spec.minLoan`,priority=1
// +kubebuilder:printcolumn:name="Safeguard %",type=integer,JSONPath=`.spec.safeguardPercent`,priority=1
// +kubebuilder:printcolumn:name="Domain",type=string,JSONPath=`.spec.domain`,priority=1
// +kubebuilder:printcolumn:name="CPU Reserve",type=string,JSONPath=`.spec.cpuReserve`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="metadata.name must be default: a namespace has one HarvestPolicy"
type HarvestPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec HarvestPolicySpec `json:"spec"`

	// +optional
	Status HarvestPolicyStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true

type HarvestPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []HarvestPolicy `json:"items"`
}

// Mode is how far Libra goes: observe changes nothing, with lend a function may get less while others need it, and with
// full it also gets more.
//
// +kubebuilder:validation:Enum=observe;lend;full
type Mode string

// Source is where the CPU comes from that a function gets beyond its limit: node is what its node has idle, owners what
// other functions of its domain do not use of their own.
//
// +kubebuilder:validation:Enum=node;owners
type Source string

// HarvestPolicySpec is of all functions of a namespace, or of the cluster.
type HarvestPolicySpec struct {
	// Mode is that of revisions without the annotation libra.dev/mode.
	//
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// MaxMode is the most that a revision gets, whatever its annotation or the mode says. The cluster's bound it too: that
	// of the cluster's default, and max-mode in config-libra.
	//
	// +optional
	MaxMode Mode `json:"maxMode,omitempty"`

	// Source comes before the namespace's label libra.dev/source, which is short for it. A node's label comes before it.
	//
	// +optional
	Source Source `json:"source,omitempty"`

	// MaxCPU is the most CPU that a container may use under the source node, of revisions without the annotation
	// libra.dev/max-cpu. Less than the container's limit is the limit.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0 && quantity(string(self)).compareTo(quantity('1048576')) <= 0",message="must be an amount of CPU from 0 to 1048576, such as 1500m or 2"
	MaxCPU *resource.Quantity `json:"maxCPU,omitempty"`

	// MinCPU is what a container keeps at least under the source owners, however little is predicted, of revisions
	// without the annotation libra.dev/min-cpu.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0 && quantity(string(self)).compareTo(quantity('1048576')) <= 0",message="must be an amount of CPU from 0 to 1048576, such as 200m or 1.5"
	MinCPU *resource.Quantity `json:"minCPU,omitempty"`

	// MinMemory is the same of memory, of revisions without the annotation libra.dev/min-memory.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('0')) >= 0 && quantity(string(self)).compareTo(quantity('1Pi')) <= 0",message="must be a whole number of bytes from 0 to 1Pi, such as 128Mi"
	MinMemory *resource.Quantity `json:"minMemory,omitempty"`

	// MinLoan is the least time that a loan of CPU must last to be made. A request that is predicted to be shorter lends
	// nothing, and one that would be shorter without a loan borrows none. Built in is 100ms.
	//
	// +optional
	// +kubebuilder:validation:Format=duration
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^(0|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)$`
	// +kubebuilder:validation:XValidation:rule="self >= duration('0s') && self <= duration('1h')",message="must be a duration from 0s to 1h, such as 100ms"
	MinLoan *metav1.Duration `json:"minLoan,omitempty"`

	// SafeguardPercent is how much of what a donor of CPU was left it uses, in percent, when it gets everything back. It
	// is left so much that the predicted CPU is no more than that. Built in is 80: more lends more, and helps later.
	//
	// +optional
	// +kubebuilder:validation:Minimum=50
	// +kubebuilder:validation:Maximum=95
	SafeguardPercent *int32 `json:"safeguardPercent,omitempty"`

	// Domain names those that functions lend to and borrow from, memory and under the source owners CPU: the functions of
	// all namespaces whose policies say the same, on the same node. Without one, and by the name of the own namespace, these
	// are the functions of that. To join a domain takes the verb join on its name, of the resource lendingdomains in the API
	// group libra.dev, which an admin of a namespace does not have.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Domain string `json:"domain,omitempty"`

	// CPUReserve is how much of each node's allocatable CPU no container may use beyond its limit, under the source node.
	// It is of nodes, so that only the cluster's default may say it. Built in is 0.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0 && quantity(string(self)).compareTo(quantity('1048576')) <= 0",message="must be an amount of CPU from 0 to 1048576, such as 200m or 1.5"
	CPUReserve *resource.Quantity `json:"cpuReserve,omitempty"`
}

// HarvestPolicyStatus is what became of a policy, as the resizer sees it. It is written within ten seconds, and the
// numbers in it once a minute at most.
type HarvestPolicyStatus struct {
	// ObservedGeneration is the generation that this is of.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Functions are those that the policy is for: the namespace's, or of the cluster's default all. A revision that gets
	// no requests, because no route leads to it, is none of them.
	//
	// +optional
	Functions int32 `json:"functions"`

	// Pods are those of the functions, by what Knative says of their revisions.
	//
	// +optional
	Pods int32 `json:"pods"`

	// Conditions are Accepted, whether Libra's parts take all that the policy says, and InForce, whether all of it holds:
	// the cluster may bound it, or a function or a node.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Conditions of a HarvestPolicy.
const (
	ConditionAccepted = "Accepted"
	ConditionInForce  = "InForce"
)

// HarvestPolicyName is the name of every HarvestPolicy.
const HarvestPolicyName = "default"
