package duplicator

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
)

// Reasons of Events on a revision whose inputs are duplicated.
const (
	// Kept inputs are replayed, scaled, to the copy of the revision.
	eventStarted = "DuplicationStarted"
	// All replays are over; the note says what became of them.
	eventFinished = "DuplicationFinished"
	// The copy, or all of its replays, could not be made; the note says why.
	eventFailed = "DuplicationFailed"
	// The copy could not be removed; it is tried again.
	eventNotRemoved = "CopyNotRemoved"
	// The revision is not one that can be duplicated; the note says why.
	eventRefused = "DuplicationRefused"
)

// events are recorded on the original revision.
type events struct {
	recorder record.EventRecorder
}

func (e events) started(rev *v1.Revision, inputs, replays int) {
	e.tell(rev, corev1.EventTypeNormal, eventStarted,
		"Replaying %d kept inputs as %d scaled requests to the copy %s", inputs, replays, copyName(rev.Name))
}

func (e events) finished(rev *v1.Revision, counts tally) {
	e.tell(rev, corev1.EventTypeNormal, eventFinished, "Replayed inputs to the copy: %s", counts)
}

func (e events) failed(rev *v1.Revision, err error) {
	e.tell(rev, corev1.EventTypeWarning, eventFailed, "Failed to duplicate inputs: %v", err)
}

func (e events) notRemoved(rev *v1.Revision, err error) {
	e.tell(rev, corev1.EventTypeWarning, eventNotRemoved, "The copy %s is not removed yet: %v", copyName(rev.Name), err)
}

func (e events) refused(rev *v1.Revision, note string) {
	e.tell(rev, corev1.EventTypeWarning, eventRefused, "%s", note)
}

func (e events) tell(rev *v1.Revision, kind, what, format string, args ...any) {
	e.recorder.Event(rev, kind, what, api.Note(fmt.Sprintf(format, args...)))
}
