// Package api holds the names and records that Libra's parts agree on: the
// labels and annotations a user writes, and the entries that travel over Redis.
package api

const (
	// EnabledLabel opts a revision in when it is EnabledValue on the revision
	// template. Knative copies it to the revision and to every pod of it.
	EnabledLabel = "libra.dev/enabled"
	EnabledValue = "true"

	// InputSizeAnnotation names where a request's input size is read from:
	// "header:NAME" or "query:NAME". Without it the size is the Content-Length.
	InputSizeAnnotation = "libra.dev/input-size"

	// ModeAnnotation is a Mode; without it the activator's own default applies.
	ModeAnnotation = "libra.dev/mode"

	// MinCPUAnnotation and MinMemoryAnnotation are quantities of CPU and memory that the
	// user container keeps at least, however little is predicted. Its request, which it
	// always keeps, may be more.
	MinCPUAnnotation    = "libra.dev/min-cpu"
	MinMemoryAnnotation = "libra.dev/min-memory"

	// UserContainer is the default name that Knative gives to the only container that
	// Libra ever resizes. A revision may name it otherwise; QueueProxyContainer is fixed.
	UserContainer       = "user-container"
	QueueProxyContainer = "queue-proxy"
)

// OptedIn says whether labels, of a revision or of a pod, opt in to Libra.
func OptedIn(labels map[string]string) bool {
	return labels[EnabledLabel] == EnabledValue
}
