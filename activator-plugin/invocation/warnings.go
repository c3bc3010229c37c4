package invocation

import (
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
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

// warn tells what is wrong with a revision in the log and in an Event on it: once for
// each what, because every request finds it anew. It waits for nothing.
func (m *Manager) warn(rev *v1.Revision, event, what, consequence string, err error) {
	name := types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}
	if !m.warned.First(warning{name, what}) {
		return
	}
	m.logger.Warnw(consequence+". This is logged once.", "function", name.String(), zap.Error(err))
	if m.events == nil {
		return
	}
	m.events.Event(rev, corev1.EventTypeWarning, event, api.Note(consequence+": "+err.Error()))
}

// warning is of a revision, and says what is wrong with it.
type warning struct {
	revision types.NamespacedName
	what     string
}
