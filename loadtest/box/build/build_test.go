package build

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestThrowaway(t *testing.T) {
	const upstream = `module example.com/up

go 1.25.3

require example.com/dep v1.2.3

exclude example.com/dep v1.2.2

replace (
	example.com/dep => example.com/fork v1.2.4
	example.com/old v0.1.0 => example.com/old v0.2.0
)
`
	tests := []struct {
		name     string
		module   Module
		upstream string
		beside   string
		want     string
		wantErr  string
	}{{
		name:     "upstream's replaces are kept, its requirements left to Go",
		module:   Module{Path: "example.com/up", Version: "v1.0.0"},
		upstream: upstream,
		want: `module throwaway

go 1.25.3

require example.com/up v1.0.0

replace example.com/dep => example.com/fork v1.2.4

replace example.com/old v0.1.0 => example.com/old v0.2.0
`,
	}, {
		name:     "given replaces stand in for upstream's",
		module:   Module{Path: "example.com/up", Version: "v1.0.0", Replace: []string{"example.com/api => example.com/api v1.31.1"}},
		upstream: upstream,
		want: `module throwaway

go 1.25.3

require example.com/up v1.0.0

replace example.com/api => example.com/api v1.31.1
`,
	}, {
		name:   "what a module built beside requires in a later version is raised to it",
		module: Module{Path: "example.com/up", Version: "v1.0.0", Beside: "go.mod"},
		upstream: `module example.com/up

go 1.25.3

require (
	example.com/earlier v1.2.3
	example.com/later v1.2.10
	example.com/pinned v1.2.3
)

replace example.com/pinned => example.com/pinned v1.2.2
`,
		beside: `module example.com/ours

go 1.26.0

require (
	example.com/earlier v1.3.0
	example.com/later v1.2.9
	example.com/ours/alone v1.0.0
	example.com/pinned v1.3.0
)
`,
		want: `module throwaway

go 1.25.3

require (
	example.com/up v1.0.0
	example.com/earlier v1.3.0
	example.com/pinned v1.3.0
)

replace example.com/pinned => example.com/pinned v1.2.2
`,
	}, {
		name:     "a replace by a folder cannot be kept",
		module:   Module{Path: "example.com/up", Version: "v1.0.0"},
		upstream: "module example.com/up\n\ngo 1.25\n\nreplace example.com/api => ./staging/api\n",
		wantErr:  "./staging/api",
	}, {
		name:     "malformed replace",
		module:   Module{Path: "example.com/up", Version: "v1.0.0", Replace: []string{"example.com/api v1.31.1"}},
		upstream: upstream,
		wantErr:  `"old => new version"`,
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.module.throwaway([]byte(tt.upstream), []byte(tt.beside))
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("throwaway() error = %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("throwaway() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRequirement(t *testing.T) {
	gomod := []byte("module m\n\nrequire (\n\ta.example/x v1.0.0\n\ta.example/y v2.0.0+incompatible // indirect\n)\n")
	if got, err := Requirement(gomod, "a.example/y"); err != nil || got != "v2.0.0+incompatible" {
		t.Errorf("Requirement() = %q, %v, want v2.0.0+incompatible", got, err)
	}
	if _, err := Requirement(gomod, "a.example/z"); err == nil || !strings.Contains(err.Error(), "a.example/z") {
		t.Errorf("Requirement() error = %v, want one that names the module", err)
	}
}

func TestInputs(t *testing.T) {
	base := Module{Path: "example.com/up", Version: "v1.0.0"}
	bin := Binary{Name: "up", Package: "cmd/up"}
	stamp := func(m Module, bin Binary, beside string) string {
		gomod, err := m.throwaway([]byte("module example.com/up\n\nrequire a.example/x v1.0.0\n"), []byte(beside))
		if err != nil {
			t.Fatal(err)
		}
		s, err := stampOf(m.inputs(bin, gomod))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	seen := map[string]string{
		stamp(base, bin, ""): "the module itself",
		stamp(base, Binary{Name: "up", Package: "cmd/down"}, ""):     "another package",
		stamp(base, bin, "module m\n\nrequire a.example/x v1.1.0\n"): "a later dependency",
	}
	for name, m := range map[string]Module{
		"another version": {Path: base.Path, Version: "v1.0.1"},
		"another replace": {Path: base.Path, Version: base.Version, Replace: []string{"a => b v1"}},
		"other tags":      {Path: base.Path, Version: base.Version, Options: Options{Tags: []string{"agent"}}},
		"other ldflags":   {Path: base.Path, Version: base.Version, Options: Options{LDFlags: []string{"-X a.b=c"}}},
	} {
		s := stamp(m, bin, "")
		if other, ok := seen[s]; ok {
			t.Errorf("%s has the stamp of %s", name, other)
		}
		seen[s] = name
	}
}

func TestOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "tool")
	made := 0
	once := func(inputs any) {
		t.Helper()
		if err := Once(path, inputs, func() error {
			made++
			return os.WriteFile(path, nil, 0o755)
		}); err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct {
		name   string
		before func()
		inputs string
		want   int
	}{
		{name: "nothing there", inputs: "v1", want: 1},
		{name: "the same inputs", inputs: "v1", want: 1},
		{name: "other inputs", inputs: "v2", want: 2},
		{name: "the file is gone", before: func() { os.Remove(path) }, inputs: "v2", want: 3},
	}
	for _, s := range steps {
		if s.before != nil {
			s.before()
		}
		if once(s.inputs); made != s.want {
			t.Errorf("%s: made %d times, want %d", s.name, made, s.want)
		}
	}

	failed := errors.New("no")
	if err := Once(path, "v3", func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("Once() = %v, want %v", err, failed)
	}
	if once("v2"); made != 4 {
		t.Error("what a failed attempt may have half written passes for what was there before it")
	}
}

func TestLocal(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{
		"go.mod":            "module example.com/local\n\ngo 1.26\n",
		"cmd/hello/main.go": "package main\n\nfunc main() {}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	machines[""] = machines[runtime.GOARCH]
	for arch, want := range machines {
		b := Builder{Bin: filepath.Join(t.TempDir(), "bin"), Arch: arch, Log: t.Logf}
		if err := b.Local(t.Context(), dir, Options{}, Binary{Name: "hello", Package: "cmd/hello"}); err != nil {
			t.Fatal(err)
		}
		f, err := elf.Open(filepath.Join(b.Bin, "hello"))
		if err != nil {
			t.Fatal(err)
		}
		if f.Machine != want {
			t.Errorf("a program for %q is for %v, want %v", arch, f.Machine, want)
		}
		f.Close()
	}
	err := Builder{Bin: t.TempDir(), Log: t.Logf}.Local(t.Context(), dir, Options{}, Binary{Name: "gone", Package: "./cmd/gone"})
	if err == nil || !strings.Contains(err.Error(), "./cmd/gone") {
		t.Errorf("Local() error = %v, want one that names the package", err)
	}
}

func TestDigest(t *testing.T) {
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	for path, data := range map[string]string{a: "12", b: "3"} {
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before, err := Digest(a, b)
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string]string{a: "1", b: "23"} {
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	after, err := Digest(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if before == after {
		t.Error("text that moved from one file to the next has the same digest")
	}
	if _, err := Digest(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a digest of no file")
	}
}
