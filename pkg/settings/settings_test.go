package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/api"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name string
		data map[string]string
		want Settings
	}{
		{"nothing", nil, Settings{Mode: api.ModeObserve, Source: api.SourceNode, Platform: Default.Platform}},
		{"an example only", map[string]string{"_example": "mode: full"}, Default},
		{"mode", map[string]string{"mode": "lend"}, Settings{Mode: api.ModeLend, Source: api.SourceNode, Platform: Default.Platform}},
		{"source", map[string]string{"source": "owners"}, Settings{Mode: api.ModeObserve, Source: api.SourceOwners, Platform: Default.Platform}},
		{"all, with space around them", map[string]string{"mode": " full\n", "source": "node\n", "cpu-reserve": " 200m"},
			Settings{Mode: api.ModeFull, Source: api.SourceNode, CPUReserveMilli: 200, Platform: Default.Platform}},
		{"cores", map[string]string{"cpu-reserve": "1.5"}, Settings{Mode: api.ModeObserve, Source: api.SourceNode, CPUReserveMilli: 1500, Platform: Default.Platform}},
		{"no reserve", map[string]string{"cpu-reserve": "0"}, Default},
		{"a platform", map[string]string{"platform-namespaces": "kourier-system, knative-serving,,kourier-system"},
			Settings{Mode: api.ModeObserve, Source: api.SourceNode, Platform: "knative-serving,kourier-system"}},
		{"no platform", map[string]string{"platform-namespaces": ""}, Settings{Mode: api.ModeObserve, Source: api.SourceNode}},
		{"the most", map[string]string{"cpu-reserve": "1048576"},
			Settings{Mode: api.ModeObserve, Source: api.SourceNode, CPUReserveMilli: 1048576_000, Platform: Default.Platform}},
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
	const reserve = "want an amount of CPU from 0 to 1048576, such as 200m or 1.5"
	for _, tc := range []struct{ key, value, want string }{
		{"mode", "on", `mode is "on", want observe, lend or full`},
		{"mode", "", "want observe, lend or full"},
		{"source", "pool", `source is "pool", want node or owners`},
		{"source", "", "want node or owners"},
		{"cpu-reserve", "", reserve},
		{"cpu-reserve", "much", `it is "much", ` + reserve},
		{"cpu-reserve", "-1m", reserve},
		{"cpu-reserve", "1048577", reserve},
		{"cpu-reserve", strings.Repeat("9", 1000), reserve},
		{"platform-namespaces", "a,B", `"B" is no name of a namespace, want names with commas between`},
		{"Mode", "full", "there is no such setting, want mode, source, cpu-reserve or platform-namespaces"},
	} {
		t.Run(tc.key+"="+tc.value[:min(len(tc.value), 20)], func(t *testing.T) {
			got, err := Parse(map[string]string{tc.key: tc.value, "_example": ""})
			if err == nil || got != (Settings{}) {
				t.Fatalf("Parse() = %+v, %v, want an error", got, err)
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
	_, err := Parse(map[string]string{"mode": "on", "source": "pool", "cpu-reserve": "much", "sauce": "node"})
	if err == nil {
		t.Fatal("Parse() succeeded")
	}
	for _, key := range []string{"mode", "source", "cpu-reserve", "sauce"} {
		if !strings.Contains(err.Error(), `key "`+key+`"`) {
			t.Errorf("error %q does not name %s", err, key)
		}
	}
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
