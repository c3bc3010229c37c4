package api

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNote(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		bytes int
	}{
		"short":                         {"Setting the limits was refused", 30},
		"as long as it may be":          {strings.Repeat("a", MaxNote), MaxNote},
		"longer":                        {strings.Repeat("a", MaxNote+1), MaxNote},
		"cut within what is one letter": {strings.Repeat("\u20ac", MaxNote), MaxNote - MaxNote%len("\u20ac")},
		"not UTF-8, and short":          {"refused: \xff", 9},
	} {
		if note := Note(c.text); len(note) != c.bytes || !utf8.ValidString(note) || !strings.HasPrefix(c.text, note) {
			t.Errorf("%s: the note is %q, of %d bytes, want %d", name, note, len(note), c.bytes)
		}
	}
}
