package controller

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
)

func TestNotesAreShortEnough(t *testing.T) {
	r := events.NewFakeRecorder(1)
	refusedEvent(&corev1.Pod{}, resize{}, errors.New(strings.Repeat("\u20ac", 1000))).record(r)
	got := <-r.Events
	note := got[strings.Index(got, "Setting"):]
	if len(note) > noteBytes || len(note) < noteBytes-utf8.UTFMax || !utf8.ValidString(note) {
		t.Errorf("note of %d bytes, valid: %v; want valid UTF-8 of about %d", len(note), utf8.ValidString(note), noteBytes)
	}
}
