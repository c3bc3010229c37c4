package main

import (
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	tests := map[string]struct {
		output string
		err    string // none when empty
	}{
		"all passed":       {"BEGIN 0-a\n--- PASS: TestKernelA\nPASS\nEND 0-a ok\nBEGIN 1-b\n--- PASS: TestKernelB\nPASS\nEND 1-b ok\nDONE\n", ""},
		"carriage returns": {"BEGIN 0-a\r\n--- PASS: TestKernelA\r\nEND 0-a ok\r\nBEGIN 1-b\r\n--- PASS: T\r\nEND 1-b ok\r\nDONE\r\n", ""},
		"one failed":       {"BEGIN 0-a\n--- PASS: T\n--- FAIL: TestKernelA\nEND 0-a exit status 1\nBEGIN 1-b\n--- PASS: T\nEND 1-b ok\nDONE\n", "0-a: exit status 1"},
		"one skipped":      {"BEGIN 0-a\n--- PASS: T\n--- SKIP: TestKernelA\nEND 0-a ok\nBEGIN 1-b\n--- PASS: T\nEND 1-b ok\nDONE\n", "skipped: --- SKIP: TestKernelA"},
		"one ran none":     {"BEGIN 0-a\n--- PASS: T\nEND 0-a ok\nBEGIN 1-b\ntesting: warning: no tests to run\nEND 1-b ok\nDONE\n", "1-b ran no test"},
		"one is missing":   {"BEGIN 0-a\n--- PASS: T\nEND 0-a ok\nDONE\n", "tests of 2 packages were to run, but 1 ended"},
		"cut short":        {"BEGIN 0-a\n--- PASS: T\nEND 0-a ok\nBEGIN 1-b\n--- PASS: T\n", "but 1 ended"},
		"nothing":          {"", "but 0 ended"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := judge(t.Output(), []byte(tc.output), 2)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("judge = %v, want %q", err, tc.err)
			}
		})
	}
}
