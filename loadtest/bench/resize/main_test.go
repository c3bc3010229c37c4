package main

import (
	"strings"
	"testing"
	"time"
)

func TestFlagsOutOfRange(t *testing.T) {
	good := repetitions{spaced: 1, backToBack: 1, loans: 1, writes: 1, spacing: time.Second}
	if err := good.check(); err != nil {
		t.Errorf("refused: %v", err)
	}
	bad := repetitions{spaced: 0, backToBack: -1, loans: 100_001, writes: 1, spacing: time.Hour}
	err := bad.check()
	for _, flag := range []string{"--spaced", "--back-to-back", "--loans", "--spacing"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is out of range, and the error is %v", flag, err)
		}
	}
	if strings.Contains(err.Error(), "--writes") {
		t.Errorf("--writes is in range, and the error is %v", err)
	}
}
