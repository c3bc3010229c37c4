package layout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDefault(t *testing.T) {
	home := t.TempDir()
	tests := []struct {
		name, cache, state string
		want               Layout
		wantErr            string
	}{{
		name: "nothing set",
		want: Layout{Cache: filepath.Join(home, "libra-box"), State: "/var/lib/libra-box"},
	}, {
		name:  "both set",
		cache: "/a/cache", state: "/a/state",
		want: Layout{Cache: "/a/cache", State: "/a/state"},
	}, {
		name:  "other names of folders",
		cache: "/a/cache/", state: "/a/b/../state//",
		want: Layout{Cache: "/a/cache", State: "/a/state"},
	}, {
		name:    "relative cache",
		cache:   "cache",
		wantErr: CacheEnv,
	}, {
		name:    "state is the root folder",
		state:   "//",
		wantErr: StateEnv,
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", home)
			t.Setenv(CacheEnv, tt.cache)
			t.Setenv(StateEnv, tt.state)
			got, err := Default()
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("Default() error = %v, want one that names %s", err, tt.wantErr)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("Default() = %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func TestState(t *testing.T) {
	tests := []struct {
		name    string
		has     []string
		wantErr string
	}{
		{name: "empty"},
		{name: "marked, and somebody put a file there", has: []string{marker, "run", "notes.txt"}},
		{name: "somebody else's", has: []string{"passwd", "run"}, wantErr: "passwd"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := Layout{State: t.TempDir()}
			for _, name := range tt.has {
				if err := os.WriteFile(filepath.Join(l.State, name), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for what, err := range map[string]error{"CheckState": l.CheckState(), "ClaimState": l.ClaimState(), "CheckState again": l.CheckState()} {
				if tt.wantErr == "" && err != nil {
					t.Errorf("%s() = %v", what, err)
				}
				if tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
					t.Errorf("%s() = %v, want an error that names %s", what, err, tt.wantErr)
				}
			}
			_, err := os.Stat(filepath.Join(l.State, marker))
			if marked := err == nil; marked != (tt.wantErr == "") {
				t.Errorf("marked = %t", marked)
			}
		})
	}
}

func TestStateNotThereYet(t *testing.T) {
	l := Layout{State: filepath.Join(t.TempDir(), "a", "b")}
	if err := l.CheckState(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(l.State); err == nil {
		t.Error("CheckState() made the folder")
	}
	if err := l.ClaimState(); err != nil {
		t.Fatal(err)
	}
	// Files that a user adds later do not make it somebody else's.
	if err := os.WriteFile(filepath.Join(l.State, "notes.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := l.CheckState(); err != nil {
		t.Error(err)
	}
}
