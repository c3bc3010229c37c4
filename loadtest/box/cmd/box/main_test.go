package main

import "testing"

func TestWithSystemPrograms(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/local/bin:/usr/bin:/bin": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
		"/usr/sbin:/usr/bin:/sbin":     "/usr/sbin:/usr/bin:/sbin",
		"":                             "/usr/sbin:/sbin",
	} {
		if got := withSystemPrograms(path); got != want {
			t.Errorf("withSystemPrograms(%q) = %q, want %q", path, got, want)
		}
	}
}
