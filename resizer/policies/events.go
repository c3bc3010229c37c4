package policies

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// Reasons of Events on a HarvestPolicy.
const (
	// The parts do not accept something that the policy says; the note says what, and what holds instead. The
	// API server refuses such an edit where it has the definitions and admission policies of this version:
	// apply them, and correct the policy.
	eventRefused = "Refused"
	// The policy says more than holds; the note says what bounds it. You need to do nothing, unless you want
	// more: see "Which counts" in docs/settings.md.
	eventBounded = "Bounded"
)

// tell records an Event, once, for whatever the policy's status does not say yet.
func (w *Writer) tell(object *unstructured.Unstructured, was, is v1alpha1.HarvestPolicyStatus) {
	of := w.seen[object.GetUID()]
	var told string
	for _, condition := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionInForce} {
		now := meta.FindStatusCondition(is.Conditions, condition)
		if now.Status != metav1.ConditionFalse || now.Reason == reasonNotAccepted {
			continue
		}
		told += now.Message
		before := meta.FindStatusCondition(was.Conditions, condition)
		if before != nil && before.Status == now.Status && before.Message == now.Message || strings.Contains(of.told, now.Message) {
			continue
		}
		if now.Reason == eventRefused {
			w.record(object, corev1.EventTypeWarning, eventRefused, now.Message)
		} else {
			w.record(object, corev1.EventTypeNormal, eventBounded, now.Message)
		}
	}
	of.told = told
	w.seen[object.GetUID()] = of
}

func (w *Writer) record(object *unstructured.Unstructured, kind, reason, note string) {
	w.events.Eventf(object, nil, kind, reason, "Read", "%s", api.Note(note))
}
