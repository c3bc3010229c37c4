package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DefaultName is the policy of functions that name none.
const DefaultName = "default"

// PlacementPolicy says where requests to functions of its namespace go. Its name is the
// tag that their label libra.dev/placement names; the one called default is for functions
// without that label, and for those whose own policy has nowhere left to go.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=libra,shortName=plp
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Unmatched",type=string,JSONPath=`.status.unmatchedBlocks`,description="The blocks that no node matches, the first is 0"
// +kubebuilder:printcolumn:name="Followup",type=string,JSONPath=`.spec.followup`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name is the tag that the label libra.dev/placement names, want at most 63 characters"
// +kubebuilder:validation:XValidation:rule="self.metadata.name != 'default' || !has(self.spec.followup) || self.spec.followup == 'fail'",message="spec.followup of the policy default can only be fail: there is no other to follow it"
type PlacementPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec PlacementPolicySpec `json:"spec"`
	// +optional
	Status PlacementPolicyStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true

type PlacementPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PlacementPolicy `json:"items"`
}

// ClusterPlacementPolicy is a PlacementPolicy for all namespaces that have none of the same name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=libra,shortName=cplp
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Unmatched",type=string,JSONPath=`.status.unmatchedBlocks`,description="The blocks that no node matches, the first is 0"
// +kubebuilder:printcolumn:name="Followup",type=string,JSONPath=`.spec.followup`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name is the tag that the label libra.dev/placement names, want at most 63 characters"
// +kubebuilder:validation:XValidation:rule="self.metadata.name != 'default' || !has(self.spec.followup) || self.spec.followup == 'fail'",message="spec.followup of the policy default can only be fail: there is no other to follow it"
type ClusterPlacementPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec PlacementPolicySpec `json:"spec"`
	// +optional
	Status PlacementPolicyStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true

type ClusterPlacementPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterPlacementPolicy `json:"items"`
}

// PlacementPolicySpec is a policy of tAPP: blocks of workers, which are nodes, of which the
// first that has a valid one gets the request.
//
// +kubebuilder:validation:XValidation:rule="self.blocks.map(b, size(b.workers)).sum() <= 64",message="spec.blocks have too many workers, want at most 64 in all: a set is one, however many nodes it has"
type PlacementPolicySpec struct {
	// Strategy orders the blocks: bestFirst as they are listed, random anew for each request,
	// platform by a hash of the function, so that each function has an order of its own.
	//
	// +optional
	// +kubebuilder:default=bestFirst
	// +kubebuilder:validation:Enum=bestFirst;random;platform
	Strategy Strategy `json:"strategy,omitempty"`

	// Blocks are tried in order until one has a valid worker.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Blocks []Block `json:"blocks"`

	// Followup is what becomes of a request for which no block has a valid worker: default leaves it
	// to the policy of that name, fail answers it with 503. It is default for all
	// policies but those called default, of which it is fail.
	//
	// +optional
	Followup Followup `json:"followup,omitempty"`
}

// Block is a choice of workers.
type Block struct {
	// Controller says what the block is to activators by the zone that they are in.
	//
	// +optional
	Controller *Controller `json:"controller,omitempty"`

	// Workers are nodes, and sets of nodes.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Workers []Worker `json:"workers"`

	// Strategy chooses among the workers. bestFirst takes the first valid one, random any.
	// The others compare the pods of all valid workers; where the one that they choose is in a
	// set that has a strategy of its own, that chooses again within the set.
	//
	// +optional
	// +kubebuilder:default=bestFirst
	Strategy Strategy `json:"strategy,omitempty"`

	// Invalidate is that of workers that have none of their own. Without either it is overload.
	//
	// +optional
	Invalidate *Invalidate `json:"invalidate,omitempty"`
}

// Controller is a zone of activators, which are to place the requests of a block.
type Controller struct {
	// Zone is that of the activator's node, in its label topology.kubernetes.io/zone.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Zone string `json:"zone"`

	// TopologyTolerance says what an activator outside the zone may do with a request when it cannot pass it
	// on to one inside: all has it use the block as those inside do, same has it use the
	// block's workers in the zone alone, none has it pass over the block.
	//
	// +optional
	// +kubebuilder:default=all
	TopologyTolerance TopologyTolerance `json:"topologyTolerance,omitempty"`

	// Outside says what an activator outside the zone does first: forward has it pass the request on to one
	// inside, if one can be reached, stay has it do at once what topologyTolerance says.
	//
	// +optional
	// +kubebuilder:default=forward
	Outside Outside `json:"outside,omitempty"`
}

// Worker is a node, or a set of nodes.
//
// +kubebuilder:validation:XValidation:rule="has(self.node) != has(self.set)",message="want either node or set; set: {} is all nodes"
// +kubebuilder:validation:XValidation:rule="!has(self.strategy) || has(self.set)",message="strategy chooses within a set, want none beside node"
type Worker struct {
	// Node is the name of one.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// Set are the nodes with the labels. Without any it is all nodes.
	//
	// +optional
	Set *NodeSet `json:"set,omitempty"`

	// Strategy chooses within the set: bestFirst by the names of nodes, random any of the nodes,
	// the others by comparing the pods. Without one it is platform.
	//
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`

	// Invalidate says when a node is not valid. Without it that of the block applies.
	//
	// +optional
	Invalidate *Invalidate `json:"invalidate,omitempty"`
}

// NodeSet are the nodes that match all of it.
type NodeSet struct {
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	MatchLabels map[string]string `json:"matchLabels,omitempty"`

	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeRequirement `json:"matchExpressions,omitempty"`
}

// NodeRequirement is one of a label.
//
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",message="values are for In and NotIn, want at least one there and none with Exists and DoesNotExist"
type NodeRequirement struct {
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key"`

	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`

	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	Values []string `json:"values,omitempty"`
}

// Invalidate says when a node is not valid: when any of it holds. A node that is not ready, or on which the
// function has no pod with room for the request, never is.
//
// +kubebuilder:validation:XValidation:rule="has(self.capacityUsedPercent) || has(self.maxConcurrentInvocations) || (has(self.overload) && self.overload)",message="want at least one of capacityUsedPercent, maxConcurrentInvocations and overload: true"
type Invalidate struct {
	// CapacityUsedPercent is how much of the node's CPU is in use, in percent.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	CapacityUsedPercent *int32 `json:"capacityUsedPercent,omitempty"`

	// MaxConcurrentInvocations is how many requests are in flight on the node, of all functions.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxConcurrentInvocations *int32 `json:"maxConcurrentInvocations,omitempty"`

	// Overload is that the node is under pressure of memory, disk or processes, as its kubelet says.
	//
	// +optional
	Overload bool `json:"overload,omitempty"`
}

// Strategy is a way to choose.
//
// +kubebuilder:validation:Enum=bestFirst;random;platform;coverage;hash;roundRobin;jsq;mws;leastPressure
type Strategy string

const (
	BestFirst Strategy = "bestFirst"
	Random    Strategy = "random"
	// Platform is what the cluster's settings name for functions without a policy.
	Platform      Strategy = "platform"
	Coverage      Strategy = "coverage"
	Hash          Strategy = "hash"
	RoundRobin    Strategy = "roundRobin"
	JSQ           Strategy = "jsq"
	MWS           Strategy = "mws"
	LeastPressure Strategy = "leastPressure"
)

// Followup is what becomes of a request that a policy has no place for.
//
// +kubebuilder:validation:Enum=default;fail
type Followup string

const (
	FollowupDefault Followup = "default"
	FollowupFail    Followup = "fail"
)

// TopologyTolerance is what a block with a controller is to other activators.
//
// +kubebuilder:validation:Enum=all;same;none
type TopologyTolerance string

const (
	ToleranceAll  TopologyTolerance = "all"
	ToleranceSame TopologyTolerance = "same"
	ToleranceNone TopologyTolerance = "none"
)

// Outside is what an activator does with a request for a block of another zone's.
//
// +kubebuilder:validation:Enum=forward;stay
type Outside string

const (
	OutsideForward Outside = "forward"
	OutsideStay    Outside = "stay"
)

// Accepted is the condition that the policy's spec, of the generation that the condition
// names, is in force. Where it is false the last one that was accepted is, if there was one.
const Accepted = "Accepted"

// Reasons of Accepted.
const (
	ReasonInForce = "InForce"
	ReasonRefused = "Refused"
)

// PlacementPolicyStatus is what activators make of a policy.
type PlacementPolicyStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// UnmatchedBlocks are the blocks, of which the first is 0, that match no node that there is.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	UnmatchedBlocks []int32 `json:"unmatchedBlocks,omitempty"`

	// Activators are those that follow the policy.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=1000
	Activators []ActivatorStatus `json:"activators,omitempty"`
}

// ActivatorStatus is what one activator makes of a policy.
type ActivatorStatus struct {
	// Name is that of its pod.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// ObservedGeneration is the last that it has read.
	//
	// +required
	ObservedGeneration int64 `json:"observedGeneration"`

	// CompiledGeneration is the one in force there: an older one where the last was refused, and 0 where none
	// is.
	//
	// +required
	CompiledGeneration int64 `json:"compiledGeneration"`
}
