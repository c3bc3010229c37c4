package invocation

import (
	"time"

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
	// Requests can bypass the activator, so that the function lends nothing and is not learned from; the note says what to set.
	eventNotInPath = "ActivatorNotInPath"
)

// warnEvery is about as long as an API server keeps Events, so that one is there while the problem is.
const warnEvery = time.Hour

// warn reports a problem with a revision in the log and in an Event on the revision: once in every warnEvery for each what,
// because every request finds it anew. It never blocks.
func (m *Manager) warn(rev *v1.Revision, event, what, consequence string, err error) {
	name := types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}
	if !m.warned.First(warning{name, what, m.clock.Since(m.began) / warnEvery}) {
		return
	}
	m.logger.Warnw(consequence+". This is logged once an hour.", "function", name.String(), zap.Error(err))
	if m.events == nil {
		return
	}
	m.events.Event(rev, corev1.EventTypeWarning, event, api.Note(consequence+": "+err.Error()))
}

// warning identifies a report of a problem with a revision.
type warning struct {
	revision types.NamespacedName
	what     string
	period   time.Duration // how many warnEvery the manager had run for
}
