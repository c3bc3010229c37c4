package layout

import (
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
