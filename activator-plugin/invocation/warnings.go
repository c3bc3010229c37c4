package invocation

import (
	"strings"
	"sync"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
)

// Reasons of Events on a revision.
const (
	// An annotation is not accepted, and the value that harms nobody applies; the note says what is accepted.
	eventAnnotationRefused = "AnnotationRefused"
	// The annotation libra.dev/input-size, or a size that a client sent, is not accepted: the request runs as one of unknown size.
	eventInputSizeRefused = "InputSizeRefused"
	// The activator only has the function's ClusterIP, so that the function is not managed.
	eventPodsNotReached = "PodsNotReached"
	// Requests can go past the activator, so that the function lends nothing and is not learned; the note says what to set.
	eventNotInPath = "ActivatorNotInPath"
)

const (
	// maxWarned bounds what a once remembers. Past it all is forgotten, and said once
	// more.
	maxWarned = 4096
	// maxNote is the longest message that the API server takes in an Event.
	maxNote = 1024
)

// warn tells what is wrong with a revision in the log and in an Event on it: once for
// each what, because every request finds it anew. It waits for nothing.
func (m *Manager) warn(rev *v1.Revision, event, what, consequence string, err error) {
	name := types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}
	if !m.warned.first(name, what) {
		return
	}
	m.logger.Warnw(consequence+". This is logged once.", "function", name.String(), zap.Error(err))
	if m.events == nil {
		return
	}
	note := consequence + ": " + err.Error()
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "")
	}
	m.events.Event(rev, corev1.EventTypeWarning, event, note)
}

// once keeps what is wrong with a revision from being said for each request.
type once struct {
	mu   sync.Mutex
	seen map[onceKey]struct{}
}

type onceKey struct {
	rev  types.NamespacedName
	what string
}

// first says whether this is the first time that what is to be said of rev.
func (o *once) first(rev types.NamespacedName, what string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := onceKey{rev, what}
	if _, ok := o.seen[key]; ok {
		return false
	}
	if o.seen == nil || len(o.seen) >= maxWarned {
		o.seen = make(map[onceKey]struct{})
	}
	o.seen[key] = struct{}{}
	return true
}
