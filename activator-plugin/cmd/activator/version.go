package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime/debug"
)

const servingModule = "knative.dev/serving"

// printVersion prints the commit of this activator and the Knative that it is for, and ends the process. It
// says nothing about the cluster that it would run on.
func printVersion(string) error {
	info, _ := debug.ReadBuildInfo()
	fmt.Println(versionOf(info))
	os.Exit(0)
	return nil
}

func versionOf(info *debug.BuildInfo) string {
	var commit, knative string
	if info != nil {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
		for _, m := range info.Deps {
			if m.Path == servingModule {
				knative = m.Version
			}
		}
	}
	const unknown = "unknown"
	return fmt.Sprintf("libra-activator %s (%s %s)", cmp.Or(commit, unknown), servingModule, cmp.Or(knative, unknown))
}
