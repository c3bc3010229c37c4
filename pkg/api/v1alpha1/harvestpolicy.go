package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HarvestPolicy says how far Libra goes with the functions of its namespace. It is named default, so a namespace has at most
// one. The one in the namespace libra-system is the cluster's default: its fields apply where a namespace's own policy does
// not set them. After it come the ConfigMap config-libra, for mode, max-mode and source, and the built-in values. An
// annotation of a revision takes precedence over all of them. A change takes effect within moments, without a new revision.
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
// +kubebuilder:printcolumn:name="Protect",type=string,JSONPath=`.spec.protect`,priority=1
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

// Mode is how far Libra goes with a function: observe changes nothing, lend lets it have less while others need it,
// and full gives it more, too.
//
// +kubebuilder:validation:Enum=observe;lend;full
type Mode string

// Source is where the CPU comes from that a function gets beyond its limit: node is what its node has idle, owners is what
// other functions of its domain do not use of their own.
//
// +kubebuilder:validation:Enum=node;owners
type Source string

// Protect is how much of its weight a pod keeps while it has had less CPU than its limit allows: half or, with strict, all.
//
// +kubebuilder:validation:Enum=half;strict
type Protect string

// HarvestPolicySpec applies to all functions of a namespace, or of the cluster.
type HarvestPolicySpec struct {
	// mode is how far Libra goes with revisions that do not have the annotation libra.dev/mode.
	//
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// maxMode is the highest mode that any revision gets, whatever its annotation or mode says. The bounds for the cluster
	// apply, too: maxMode of the cluster's default, and max-mode in config-libra.
	//
	// +optional
	MaxMode Mode `json:"maxMode,omitempty"`

	// source is where CPU beyond the limit comes from: node or owners. It takes precedence over the namespace's label
	// libra.dev/source, which is short for it. A node's label takes precedence over both.
	//
	// +optional
	Source Source `json:"source,omitempty"`

	// maxCPU is the most CPU that a container may use under the source node, for revisions that do not have the annotation
	// libra.dev/max-cpu. A value below the container's limit counts as the limit.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0 && quantity(string(self)).compareTo(quantity('1048576')) <= 0",message="must be an amount of CPU from 0 to 1048576, such as 1500m or 2"
	MaxCPU *resource.Quantity `json:"maxCPU,omitempty"`

	// minCPU is the least CPU that a container keeps under the source owners, however little is predicted, for revisions
	// that do not have the annotation libra.dev/min-cpu.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0 && quantity(string(self)).compareTo(quantity('1048576')) <= 0",message="must be an amount of CPU from 0 to 1048576, such as 200m or 1.5"
	MinCPU *resource.Quantity `json:"minCPU,omitempty"`

	// minMemory is the least memory that a container keeps, however little is predicted, for revisions that do not have the
	// annotation libra.dev/min-memory.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('0')) >= 0 && quantity(string(self)).compareTo(quantity('1Pi')) <= 0",message="must be a whole number of bytes from 0 to 1Pi, such as 128Mi"
	MinMemory *resource.Quantity `json:"minMemory,omitempty"`

	// minLoan is the least time that a loan of CPU must last to be made. A request that is predicted to be shorter lends
	// nothing, and one that would be shorter without a loan borrows none. The built-in value is 100ms.
	//
	// +optional
	// +kubebuilder:validation:Format=duration
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^(0|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)$`
	// +kubebuilder:validation:XValidation:rule="self >= duration('0s') && self <= duration('1h')",message="must be a duration from 0s to 1h, such as 100ms"
	MinLoan *metav1.Duration `json:"minLoan,omitempty"`

	// safeguardPercent is a share, in percent, of the CPU that a donor was left. A donor that uses this share gets
	// everything back. It is left enough that its predicted CPU is no more than this share. The built-in value is 80. A
	// higher value lends more, and helps later when a prediction is wrong.
	//
	// +optional
	// +kubebuilder:validation:Minimum=50
	// +kubebuilder:validation:Maximum=95
	SafeguardPercent *int32 `json:"safeguardPercent,omitempty"`

	// protect is how much of the CPU weight that the kubelet gave it a pod keeps, under the source node, while it has had
	// less CPU than its limit allows since its requests began. Other pods of its namespace that will have something done
	// sooner may have the rest. It is half, which is built in, or strict, which is all.
	//
	// +optional
	Protect Protect `json:"protect,omitempty"`

	// domain names the functions that lend to one another: those of all namespaces whose policies name the same domain, on
	// the same node. They lend memory and, under the source owners, CPU. Without a domain, or with the namespace's own name,
	// these are only the functions of the namespace. To join a domain takes the verb join on its name, of the resource
	// lendingdomains in the API group libra.dev. An admin of a namespace does not have it.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Domain string `json:"domain,omitempty"`

	// cpuReserve is how much of each node's allocatable CPU no container may use beyond its limit, under the source node. It
	// applies to nodes, so only the cluster's default may set it. The built-in value is 0.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0 && quantity(string(self)).compareTo(quantity('1048576')) <= 0",message="must be an amount of CPU from 0 to 1048576, such as 200m or 1.5"
	CPUReserve *resource.Quantity `json:"cpuReserve,omitempty"`
}

// HarvestPolicyStatus is what became of a policy, as the resizer sees it. The resizer writes it within ten seconds, and
// counts functions and pods when a policy changes and every ten minutes.
type HarvestPolicyStatus struct {
	// observedGeneration is the generation of the policy that this status is for.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// functions is how many functions the policy applies to: those of its namespace or, for the cluster's default, all. A
	// revision that gets no requests, because no route leads to it, does not count.
	//
	// +optional
	Functions int32 `json:"functions"`

	// pods is how many pods these functions have, according to the status of their Revisions.
	//
	// +optional
	Pods int32 `json:"pods"`

	// conditions are Accepted, whether Libra's parts accept everything that the policy says, and InForce, whether all of it
	// is in force: the cluster, a function or a node may bound it.
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
