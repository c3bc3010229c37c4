package api

import "strings"

// MaxNote is the longest message, in bytes, that the API server takes in an Event.
const MaxNote = 1024

// Note is as much of a text as an Event takes.
func Note(text string) string {
	if len(text) > MaxNote {
		text = text[:MaxNote]
	}
	return strings.ToValidUTF8(text, "")
}
