package duplicator

import (
	"fmt"

	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
)

// Reasons of Events on a revision whose inputs are duplicated.
const (
	// Kept inputs are replayed, scaled, to the copy of the revision.
	eventStarted = "DuplicationStarted"
	// All replays are over; the note says what became of them.
	eventFinished = "DuplicationFinished"
	// The copy could not be made, no replay succeeded, or not all of them ended; the note says why.
	eventFailed = "DuplicationFailed"
	// The copy could not be removed; it is tried again.
	eventNotRemoved = "CopyNotRemoved"
	// The revision is not one that can be duplicated; the note says why.
	eventRefused = "DuplicationRefused"
)

// tell records an Event on the original revision.
func (d *Duplicator) tell(rev *v1.Revision, kind, what, format string, args ...any) {
	d.events.Event(rev, kind, what, api.Note(fmt.Sprintf(format, args...)))
}
