// Package api holds the names and records that Libra's parts agree on: the
// labels and annotations a user writes, and the entries that travel over Redis.
package api

const (
	// EnabledLabel opts a revision in when it is EnabledValue on the revision
	// template. Knative copies it to the revision and to every pod of it.
	EnabledLabel = "libra.dev/enabled"
	EnabledValue = "true"

	// InputSizeAnnotation names where a request's input size is read from:
	// "header:NAME", "query:NAME", or "json:/POINTER" into a JSON body of at most 64 KiB (RFC 6901). Without it the
	// size is the Content-Length.
	InputSizeAnnotation = "libra.dev/input-size"

	// ModeAnnotation is observe, lend or full; without it that of the settings applies.
	ModeAnnotation = "libra.dev/mode"

	// MinCPUAnnotation and MinMemoryAnnotation are quantities of CPU and memory that the
	// user container keeps at least, however little is predicted. Its request, which it
	// always keeps, may be more.
	MinCPUAnnotation    = "libra.dev/min-cpu"
	MinMemoryAnnotation = "libra.dev/min-memory"

	// SourceLabel, on a namespace or a node, is where what is lent there comes from: node or owners. A node's
	// comes before its pods' namespaces'.
	SourceLabel = "libra.dev/source"

	// MaxCPUAnnotation is the most CPU, as a quantity, that the user container may use of
	// what its node has idle. Without it that is all that the node can give; less than the
	// user allocation is the user allocation.
	MaxCPUAnnotation = "libra.dev/max-cpu"

	// IdleAnnotation is IdleKeep to have the pods of a revision lend no CPU while nothing is in
	// flight in them, as under the source owners they would.
	IdleAnnotation = "libra.dev/idle"
	IdleKeep       = "keep"

	// QueueAnnotation is QueueFIFO to let requests of a revision that wait for a free slot
	// go in the order in which they came. Otherwise the one predicted to be the shortest
	// goes first.
	QueueAnnotation = "libra.dev/queue"
	QueueFIFO       = "fifo"

	// PlacementLabel, on the revision template, is the tag by which a PlacementPolicy of the
	// namespace is found.
	PlacementLabel = "libra.dev/placement"

	// ReasonHeader of a response says why Libra refused the request.
	ReasonHeader = "X-Libra-Reason"
	// ForwardedHeader is on a request that one activator has passed on to another, which passes it on to no
	// further one. It never reaches a function. A client that sends it has its request stay where it comes to.
	ForwardedHeader = "X-Libra-Forwarded"

	// ActivatorMetricsPort is where Libra's metrics of an activator are, which neither Knative's
	// activator nor its queue-proxy uses.
	ActivatorMetricsPort = 9095
	// ActivatorRequestsPath is where, on that port, it tells of its last requests.
	ActivatorRequestsPath = "/requests"

	// UserContainer is the default name that Knative gives to the only container that
	// Libra ever resizes. A revision may name it otherwise; QueueProxyContainer is fixed.
	UserContainer       = "user-container"
	QueueProxyContainer = "queue-proxy"
)

// OptedIn says whether labels, of a revision or of a pod, opt in to Libra.
func OptedIn(labels map[string]string) bool {
	return labels[EnabledLabel] == EnabledValue
}
