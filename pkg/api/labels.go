// Package api holds the names and records that Libra's parts agree on: the labels and annotations that a user
// writes, and the entries that travel over Redis.
package api

const (
	// EnabledLabel opts a revision in when it is EnabledValue on the revision template. Knative copies it to the
	// revision and to all its pods.
	EnabledLabel = "libra.dev/enabled"
	EnabledValue = "true"

	// InputSizeAnnotation names the place in a request that holds the size of its input:
	// "header:NAME", "query:NAME", or "json:/POINTER" (RFC 6901) into a JSON body of at most 64 KiB.
	// Without it the size is the Content-Length.
	InputSizeAnnotation = "libra.dev/input-size"

	// ModeAnnotation is the mode of a revision: ModeObserve, ModeLend or ModeFull. Without it the
	// mode in the settings applies.
	ModeAnnotation = "libra.dev/mode"

	// MinCPUAnnotation and MinMemoryAnnotation are the least CPU and memory, as quantities, that the user container
	// keeps, however little is predicted. It always keeps its request, which may be more.
	MinCPUAnnotation    = "libra.dev/min-cpu"
	MinMemoryAnnotation = "libra.dev/min-memory"

	// SourceLabel, on a namespace or a node, says where CPU beyond the user allocation comes from there: SourceNode
	// or SourceOwners. A node's label takes precedence over the labels of its pods' namespaces.
	SourceLabel = "libra.dev/source"

	// MaxCPUAnnotation is the most CPU, as a quantity, that the user container may use under the source SourceNode.
	// Without it, and without maxCPU in a HarvestPolicy, that is all that the node can give. A value below the user
	// allocation counts as the user allocation.
	MaxCPUAnnotation = "libra.dev/max-cpu"

	// IdleAnnotation is IdleKeep to keep the pods of a revision from lending CPU while nothing is in flight in
	// them, as they otherwise do under the source SourceOwners.
	IdleAnnotation = "libra.dev/idle"
	IdleKeep       = "keep"

	// QueueAnnotation is QueueFIFO to send the requests of a revision that wait for a free slot in the order in
	// which they came. Otherwise the one that is predicted to be the shortest goes first.
	QueueAnnotation = "libra.dev/queue"
	QueueFIFO       = "fifo"

	// PlacementLabel, on the revision template, names the function's PlacementPolicy in the namespace, or
	// else its ClusterPlacementPolicy.
	PlacementLabel = "libra.dev/placement"

	// ReasonHeader, on a response, says why Libra refused the request.
	ReasonHeader = "X-Libra-Reason"
	// ForwardedHeader is on a request that one activator has passed on to another, which does not pass it on again.
	// It never reaches a function. A request that a client sends with it stays with the activator that receives it.
	ForwardedHeader = "X-Libra-Forwarded"

	// ActivatorMetricsPort is the port of Libra's metrics of an activator. Neither Knative's activator
	// nor its queue-proxy uses it.
	ActivatorMetricsPort = 9095
	// ActivatorRequestsPath is the path, on that port, at which an activator lists its last requests.
	ActivatorRequestsPath = "/requests"

	// UserContainer is the name that Knative gives by default to the only container that Libra ever resizes. A
	// revision may name it otherwise. QueueProxyContainer is fixed.
	UserContainer       = "user-container"
	QueueProxyContainer = "queue-proxy"
)

// OptedIn reports whether labels, of a revision or of a pod, opt in to Libra.
func OptedIn(labels map[string]string) bool {
	return labels[EnabledLabel] == EnabledValue
}
