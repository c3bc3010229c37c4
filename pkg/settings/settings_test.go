package settings

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name string
		data map[string]string
		want Settings
	}{
		{"nothing", nil, Settings{Mode: api.ModeObserve, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement}},
		{"an example only", map[string]string{"_example": "mode: full"}, Default},
		{"mode", map[string]string{"mode": "lend"}, Settings{Mode: api.ModeLend, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement}},
		{"the most of all modes", map[string]string{"mode": "full", "max-mode": " observe"},
			Settings{Mode: api.ModeFull, MaxMode: api.ModeObserve, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement}},
		{"source", map[string]string{"source": "owners"}, Settings{Mode: api.ModeObserve, MaxMode: Default.MaxMode, Source: api.SourceOwners, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement}},
		{"all, with space around them", map[string]string{"mode": " full\n", "source": "node\n"},
			Settings{Mode: api.ModeFull, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: Default.Placement}},
		{"a platform", map[string]string{"platform-namespaces": "kourier-system, knative-serving,,kourier-system"},
			Settings{Mode: api.ModeObserve, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: "knative-serving,kourier-system", Placement: Default.Placement}},
		{"no platform", map[string]string{"platform-namespaces": ""}, Settings{Mode: api.ModeObserve, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Placement: Default.Placement}},
		{"a placement", map[string]string{"placement": " hash\n"},
			Settings{Mode: api.ModeObserve, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: api.PlacementHash}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Parse(tc.data)
			if err != nil {
				t.Fatal("Parse() =", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error("Parse() (-want, +got):\n" + diff)
			}
		})
	}
}

func TestParseNamesWhatIsWrong(t *testing.T) {
	for _, tc := range []struct{ key, value, want string }{
		{"mode", "on", `mode is "on", want observe, lend or full`},
		{"mode", "", "want observe, lend or full"},
		{"max-mode", "off", `mode is "off", want observe, lend or full; until it is corrected, "observe" applies`},
		{"max-mode", "", "want observe, lend or full"},
		{"source", "pool", `source is "pool", want node or owners`},
		{"source", "", "want node or owners"},
		{"platform-namespaces", "a,B", `"B" is not the name of a namespace, want comma-separated names`},
		{"placement", "jsq", `placement is "jsq", want default, coverage, hash, round-robin, join-shortest-queue, minimum-worker-set, `},
		{"Mode", "full", "there is no such setting, want mode, max-mode, source, platform-namespaces or placement"},
	} {
		t.Run(tc.key+"="+tc.value[:min(len(tc.value), 20)], func(t *testing.T) {
			got, err := Parse(map[string]string{tc.key: tc.value, "_example": ""})
			expected := Default
			if tc.key == "max-mode" {
				expected.MaxMode = api.ModeObserve
			}
			if err == nil || got != expected {
				t.Fatalf("Parse() = %+v, %v, want %+v and an error", got, err, expected)
			}
			for _, want := range []string{`key "` + tc.key + `" of ConfigMap libra-system/config-libra: `, tc.want} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want %q in it", err, want)
				}
			}
			if len(err.Error()) > 300 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestParseNamesAllThatIsWrong(t *testing.T) {
	_, err := Parse(map[string]string{"mode": "on", "source": "pool", "sauce": "node"})
	if err == nil {
		t.Fatal("Parse() succeeded")
	}
	for _, key := range []string{"mode", "source", "sauce"} {
		if !strings.Contains(err.Error(), `key "`+key+`"`) {
			t.Errorf("error %q does not name %s", err, key)
		}
	}
}

// A key that cannot be read stays as it was, whatever else the edit says. A key that is gone gets
// its default. max-mode, which bounds all modes, makes Libra change nothing while it cannot be
// read.
func TestEditKeepsWhatCannotBeRead(t *testing.T) {
	was := Settings{Mode: api.ModeFull, MaxMode: api.ModeLend, Source: api.SourceOwners, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: "a,b", Placement: api.PlacementStock}
	for name, tc := range map[string]struct {
		data map[string]string
		want Settings
		says string
	}{
		"mode": {map[string]string{"mode": "on", "source": "node"},
			Settings{Mode: api.ModeFull, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: api.PlacementDefault}, `want observe, lend or full; until it is corrected, "full" applies`},
		"the most of all modes": {map[string]string{"max-mode": "none", "mode": "full"},
			Settings{Mode: api.ModeFull, MaxMode: api.ModeObserve, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: api.PlacementDefault}, `until it is corrected, "observe" applies`},
		"source": {map[string]string{"source": "owner"},
			Settings{Mode: api.ModeObserve, MaxMode: Default.MaxMode, Source: api.SourceOwners, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: api.PlacementDefault}, `until it is corrected, "owners" applies`},
		"platform": {map[string]string{"platform-namespaces": "A", "mode": "lend"},
			Settings{Mode: api.ModeLend, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: "a,b", Placement: api.PlacementDefault}, `until it is corrected, "a,b" applies`},
		"placement": {map[string]string{"placement": "best", "mode": "lend"},
			Settings{Mode: api.ModeLend, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: api.PlacementStock}, `until it is corrected, "stock" applies`},
		"a key that there is not": {map[string]string{"mod": "full", "mode": "lend"},
			Settings{Mode: api.ModeLend, MaxMode: Default.MaxMode, Source: api.SourceNode, MinLoan: Default.MinLoan, SafeguardPercent: 80, Protect: api.ProtectHalf, Platform: Default.Platform, Placement: api.PlacementDefault}, "there is no such setting"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := was.Edit(tc.data)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error("Edit() (-want, +got):\n" + diff)
			}
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Edit() = %v, want an error that says %q", err, tc.says)
			}
		})
	}
}

// After any edits, bad ones among them, each key by itself has the last value that could be read
// since the key was last absent. A part that starts now, and saw none of the edits, agrees except
// for keys that cannot be read, which have their default. For both, max-mode is observe while it
// cannot be read.
func TestEditsOfKeysAreTheirOwn(t *testing.T) {
	values := map[string][]string{
		"mode": {"observe", "lend", "full", "on", ""}, "max-mode": {"observe", "lend", "full", "on", ""}, "source": {"node", "owners", "pool"},
		"platform-namespaces": {"", "a", "a,B"}, "placement": {"hash", "stock", "best"}, "sauce": {"node"},
	}
	of := func(s Settings, key string) any {
		return map[string]any{"mode": s.Mode, "max-mode": s.MaxMode, "source": s.Source, "platform-namespaces": s.Platform, "placement": s.Placement}[key]
	}
	rapid.Check(t, func(t *rapid.T) {
		live := Default
		want := map[string]any{}
		for key := range values {
			want[key] = of(Default, key)
		}
		for range rapid.IntRange(1, 10).Draw(t, "edits") {
			data := map[string]string{}
			bad := 0
			for _, key := range slices.Sorted(maps.Keys(values)) {
				if !rapid.Bool().Draw(t, "has "+key) {
					want[key] = of(Default, key)
					continue
				}
				data[key] = rapid.SampledFrom(values[key]).Draw(t, key)
				if alone, err := Parse(map[string]string{key: data[key]}); err == nil {
					want[key] = of(alone, key)
				} else {
					bad++
					if key == "max-mode" {
						want[key] = api.ModeObserve
					}
				}
			}
			var err error
			live, err = live.Edit(data)
			starts, _ := Parse(data)
			if refused := 0; err != nil {
				refused = len(err.(interface{ Unwrap() []error }).Unwrap())
				if refused != bad {
					t.Fatalf("%d keys are refused, want %d: %v", refused, bad, err)
				}
			} else if bad > 0 {
				t.Fatalf("%d keys of %v cannot be read, and there is no error", bad, data)
			}
			for key := range values {
				if got := of(live, key); got != want[key] {
					t.Fatalf("%s is %v after %v, want %v", key, got, data, want[key])
				}
				_, unread := Parse(map[string]string{key: data[key]})
				_, there := data[key]
				unreadAs := of(Default, key)
				if key == "max-mode" {
					unreadAs = api.ModeObserve
				}
				if got := of(starts, key); there && unread != nil && got != unreadAs || (!there || unread == nil) && got != want[key] {
					t.Fatalf("%s is %v of a part that starts with %v", key, got, data)
				}
			}
		}
	})
}

func TestNamespacesHas(t *testing.T) {
	for _, tc := range []struct {
		names     Namespaces
		namespace string
		want      bool
	}{
		{"a,b", "a", true}, {"a,b", "b", true}, {"a,b", "c", false}, {"ab", "a", false}, {"", "", false}, {"a", "", false},
	} {
		if got := tc.names.Has(tc.namespace); got != tc.want {
			t.Errorf("%q has %q: %v, want %v", tc.names, tc.namespace, got, tc.want)
		}
	}
}
