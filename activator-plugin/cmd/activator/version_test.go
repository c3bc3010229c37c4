package main

import (
	"runtime/debug"
	"testing"
)

func TestVersionNamesTheCommitAndKnative(t *testing.T) {
	for want, info := range map[string]*debug.BuildInfo{
		"libra-activator unknown (knative.dev/serving unknown)": nil,
		"libra-activator abc (knative.dev/serving v0.50.0)": {
			Deps:     []*debug.Module{{Path: "knative.dev/pkg", Version: "v0.1.0"}, {Path: servingModule, Version: "v0.50.0"}},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}},
		},
	} {
		if got := versionOf(info); got != want {
			t.Errorf("it is %q, want %q", got, want)
		}
	}
}
