package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestTheSoftMemoryLimitIsBelowTheContainers(t *testing.T) {
	const none = math.MaxInt64
	for name, tc := range map[string]struct {
		file, content string
		env           string
		want          int64
		from          string
		level         zapcore.Level
	}{
		"version 2":          {file: "memory.max", content: "629145600\n", want: 534773760, from: "memory.max"},
		"version 1":          {file: "memory/memory.limit_in_bytes", content: "629145600\n", want: 534773760, from: "memory/memory.limit_in_bytes"},
		"none in version 2":  {file: "memory.max", content: "max\n", want: none},
		"none in version 1":  {file: "memory/memory.limit_in_bytes", content: "9223372036854771712\n", want: none},
		"no cgroup":          {file: "cpu.max", content: "max 100000\n", want: none},
		"in the environment": {file: "memory.max", content: "629145600\n", env: "400MiB", want: none, from: softLimitEnv},
		"not a number":       {file: "memory.max", content: "much\n", want: none, level: zap.WarnLevel},
	} {
		t.Run(name, func(t *testing.T) {
			before := debug.SetMemoryLimit(none)
			t.Cleanup(func() { debug.SetMemoryLimit(before) })
			t.Setenv(softLimitEnv, tc.env)
			root := t.TempDir()
			path := filepath.Join(root, tc.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(tc.content), 0o644); err != nil {
				t.Fatal(err)
			}
			core, logs := observer.New(zap.InfoLevel)
			limitMemory(root, zap.New(core).Sugar())
			if got := debug.SetMemoryLimit(-1); got != tc.want {
				t.Errorf("the soft limit is %d, want %d", got, tc.want)
			}

			all := logs.All()
			if len(all) != 1 || all[0].Level != tc.level {
				t.Fatalf("logged %v, want one line of level %s", all, tc.level)
			}
			said := all[0].ContextMap()
			if tc.from == "" {
				return
			}
			from := tc.from
			if from != softLimitEnv {
				from = filepath.Join(root, from)
			}
			if said["from"] != from || said["bytes"] != tc.want {
				t.Errorf("logged %v, want %d bytes from %s", said, tc.want, from)
			}
		})
	}
}
