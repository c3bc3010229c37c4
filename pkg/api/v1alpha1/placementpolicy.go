package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DefaultName is the name of the policy for functions that name none.
const DefaultName = "default"

// PlacementPolicy says where requests to functions of its namespace go. Its name is the tag in the label
// libra.dev/placement of these functions. The policy called default is for functions without that label, and
// for those whose own policy has nowhere left to go.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=libra,shortName=plp
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Unmatched",type=string,JSONPath=`.status.unmatchedBlocks`,description="Blocks, counted from 0, that match no node"
// +kubebuilder:printcolumn:name="Followup",type=string,JSONPath=`.spec.followup`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters: the label libra.dev/placement names it"
// +kubebuilder:validation:XValidation:rule="self.metadata.name != 'default' || !has(self.spec.followup) || self.spec.followup == 'fail'",message="spec.followup of the policy default must be fail: no other policy follows it"
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
// +kubebuilder:printcolumn:name="Unmatched",type=string,JSONPath=`.status.unmatchedBlocks`,description="Blocks, counted from 0, that match no node"
// +kubebuilder:printcolumn:name="Followup",type=string,JSONPath=`.spec.followup`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters: the label libra.dev/placement names it"
// +kubebuilder:validation:XValidation:rule="self.metadata.name != 'default' || !has(self.spec.followup) || self.spec.followup == 'fail'",message="spec.followup of the policy default must be fail: no other policy follows it"
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

// PlacementPolicySpec is a tAPP policy: blocks of workers, which are nodes. The first block that has a
// valid worker gets the request.
//
// +kubebuilder:validation:XValidation:rule="self.blocks.map(b, size(b.workers)).sum() <= 64",message="spec.blocks have too many workers, want at most 64 in all: a set counts as one, however many nodes it has"
type PlacementPolicySpec struct {
	// strategy is the order of the blocks: bestFirst as they are listed, random anew for each request,
	// platform by a hash of the function, so that each function has an order of its own.
	//
	// +optional
	// +kubebuilder:default=bestFirst
	// +kubebuilder:validation:Enum=bestFirst;random;platform
	Strategy Strategy `json:"strategy,omitempty"`

	// blocks are tried in order until one has a valid worker.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Blocks []Block `json:"blocks"`

	// followup says what happens to a request for which no block has a valid worker: default leaves it to the
	// policy called default, fail answers it with 503. If it is not set, it is default, and in policies
	// called default it is fail.
	//
	// +optional
	Followup Followup `json:"followup,omitempty"`
}

// Block is a choice of workers.
type Block struct {
	// controller names the zone whose activators place the requests of this block, and says
	// what activators outside it do.
	//
	// +optional
	Controller *Controller `json:"controller,omitempty"`

	// workers are nodes and sets of nodes.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Workers []Worker `json:"workers"`

	// strategy chooses among the workers: bestFirst takes the first valid one, random any valid one. The
	// others compare the pods of all valid workers. If the pod that they choose is in a set with a strategy
	// of its own, that strategy chooses again within the set.
	//
	// +optional
	// +kubebuilder:default=bestFirst
	Strategy Strategy `json:"strategy,omitempty"`

	// invalidate says when a worker that has no invalidate of its own is not valid. If
	// neither is set, it is overload.
	//
	// +optional
	Invalidate *Invalidate `json:"invalidate,omitempty"`
}

// Controller names a zone whose activators place the requests of a block.
type Controller struct {
	// zone is the zone of the nodes that these activators are on, as in the nodes' label
	// topology.kubernetes.io/zone.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Zone string `json:"zone"`

	// topologyTolerance says what an activator outside the zone may do with a request when it cannot pass it
	// on to one inside: all uses the block as activators inside do, same uses only those of the block's
	// workers that are in the zone, none passes over the block.
	//
	// +optional
	// +kubebuilder:default=all
	TopologyTolerance TopologyTolerance `json:"topologyTolerance,omitempty"`

	// outside says what an activator outside the zone does first: forward passes the request on to one
	// inside, if one can be reached; stay does at once what topologyTolerance says.
	//
	// +optional
	// +kubebuilder:default=forward
	Outside Outside `json:"outside,omitempty"`
}

// Worker is a node, or a set of nodes.
//
// +kubebuilder:validation:XValidation:rule="has(self.node) != has(self.set)",message="want either node or set; set: {} is all nodes"
// +kubebuilder:validation:XValidation:rule="!has(self.strategy) || has(self.set)",message="strategy chooses within a set: leave it out beside node"
type Worker struct {
	// node is the name of a node.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Node string `json:"node,omitempty"`

	// set selects nodes by their labels. An empty set is all nodes.
	//
	// +optional
	Set *NodeSet `json:"set,omitempty"`

	// strategy chooses within the set: bestFirst takes the first node by name, random any node, and the
	// others compare the pods. Without one it is platform.
	//
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`

	// invalidate says when a node is not valid. Without it the invalidate of the block applies.
	//
	// +optional
	Invalidate *Invalidate `json:"invalidate,omitempty"`
}

// NodeSet selects the nodes that match all of its requirements.
//
// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.all(key, size(key) <= 317)",message="keys of matchLabels must have at most 317 characters, as those of labels"
type NodeSet struct {
	// matchLabels are labels that a node must have.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// matchExpressions are requirements on a node's labels.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeRequirement `json:"matchExpressions,omitempty"`
}

// LabelValue is the value of a node's label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
type LabelValue string

// NodeRequirement is a requirement on one label of a node.
//
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",message="want at least one of values with In and NotIn, and none with Exists and DoesNotExist"
type NodeRequirement struct {
	// key is the label's key.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Key string `json:"key"`

	// operator is the label's relation to values: In, NotIn, Exists or DoesNotExist.
	//
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`

	// values are for In and NotIn.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Values []string `json:"values,omitempty"`
}

// Invalidate says when a node is not valid: when any of its conditions holds. A node that is not ready, or on
// which the function has no pod with room for the request, is never valid.
//
// +kubebuilder:validation:XValidation:rule="has(self.capacityUsedPercent) || has(self.maxConcurrentInvocations) || (has(self.overload) && self.overload)",message="want at least one of capacityUsedPercent, maxConcurrentInvocations and overload: true"
type Invalidate struct {
	// capacityUsedPercent makes the node not valid while at least this percentage of its CPU is in use.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	CapacityUsedPercent *int32 `json:"capacityUsedPercent,omitempty"`

	// maxConcurrentInvocations makes the node not valid while at least this many requests, of all
	// functions, are in flight on it.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxConcurrentInvocations *int32 `json:"maxConcurrentInvocations,omitempty"`

	// overload makes the node not valid while its kubelet reports pressure of memory, disk or processes.
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

// Followup is what happens to a request that a policy has no place for.
//
// +kubebuilder:validation:Enum=default;fail
type Followup string

const (
	FollowupDefault Followup = "default"
	FollowupFail    Followup = "fail"
)

// TopologyTolerance is what activators outside the zone of a block's controller may do with the block.
//
// +kubebuilder:validation:Enum=all;same;none
type TopologyTolerance string

const (
	ToleranceAll  TopologyTolerance = "all"
	ToleranceSame TopologyTolerance = "same"
	ToleranceNone TopologyTolerance = "none"
)

// Outside is what an activator does first with a request for a block that designates another zone.
//
// +kubebuilder:validation:Enum=forward;stay
type Outside string

const (
	OutsideForward Outside = "forward"
	OutsideStay    Outside = "stay"
)

// Accepted is the condition that says whether the policy's spec, at the generation that the condition names,
// is in force. If it is false, the last spec that was accepted stays in force, if there was one.
const Accepted = "Accepted"

// Reasons of Accepted.
const (
	ReasonInForce = "InForce"
	ReasonRefused = "Refused"
)

// PlacementPolicyStatus is what activators make of a policy.
type PlacementPolicyStatus struct {
	// conditions include Accepted: whether the last edit of the policy is in force.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// unmatchedBlocks are the blocks, counted from 0, that match no existing node.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	UnmatchedBlocks []int32 `json:"unmatchedBlocks,omitempty"`

	// activators are the activators that follow the policy.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=1000
	Activators []ActivatorStatus `json:"activators,omitempty"`
}

// ActivatorStatus is what one activator makes of a policy.
type ActivatorStatus struct {
	// name is the name of the activator's pod.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// observedGeneration is the last generation that the activator has read.
	//
	// +required
	ObservedGeneration int64 `json:"observedGeneration"`

	// compiledGeneration is the generation in force in the activator: an older one if the last was refused,
	// and 0 if none is in force.
	//
	// +required
	CompiledGeneration int64 `json:"compiledGeneration"`
}
