package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// judge writes the tests' output to out. It returns an error unless all packages ran tests and all
// of those passed.
func judge(out io.Writer, output []byte, packages int) error {
	var errs []error
	ended, passed, done := 0, 0, false
	for line := range strings.Lines(string(output)) {
		line = strings.TrimRight(line, "\r\n")
		switch word, rest, _ := strings.Cut(strings.TrimSpace(line), " "); {
		case word == "BEGIN":
			passed = 0
			continue
		case word == "END":
			ended++
			name, result, _ := strings.Cut(rest, " ")
			if result != "ok" {
				errs = append(errs, fmt.Errorf("%s: %s", name, result))
			} else if passed == 0 {
				errs = append(errs, fmt.Errorf("%s ran no test", name))
			}
			continue
		case word == "DONE":
			done = true
			continue
		case strings.HasPrefix(line, "=== "):
			continue
		case strings.HasPrefix(line, "--- PASS"):
			passed++
		case strings.HasPrefix(line, "--- SKIP"):
			errs = append(errs, errors.New("a test was skipped: "+line))
		}
		fmt.Fprintln(out, line)
	}
	if !done || ended != packages {
		errs = append(errs, fmt.Errorf("the tests of %d packages were to run, but %d ended", packages, ended))
	}
	return errors.Join(errs...)
}
