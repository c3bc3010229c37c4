package api

import "strings"

// MaxNote is the longest message, in bytes, that the API server takes in an Event.
const MaxNote = 1024

// Note returns as much of text as fits in an Event, without
// bytes that are not valid UTF-8.
func Note(text string) string {
	if len(text) > MaxNote {
		text = text[:MaxNote]
	}
	return strings.ToValidUTF8(text, "")
}
