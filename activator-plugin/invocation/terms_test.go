package invocation

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/api"
)

func TestTerms(t *testing.T) {
	const all = keepAll
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        terms
		refused     []string // a part of each error
	}{
		{"none", nil, terms{mode: api.ModeLend}, nil},
		{"mode", map[string]string{api.ModeAnnotation: "observe"}, terms{mode: api.ModeObserve}, nil},
		{"mode with more rights than the default", map[string]string{api.ModeAnnotation: "full"}, terms{mode: api.ModeFull}, nil},
		{"no such mode", map[string]string{api.ModeAnnotation: "Full"}, terms{mode: api.ModeObserve},
			[]string{`annotation libra.dev/mode is "Full", want observe, lend or full`}},
		{"empty mode", map[string]string{api.ModeAnnotation: ""}, terms{mode: api.ModeObserve},
			[]string{`annotation libra.dev/mode is "", want observe, lend or full`}},
		{"bounds", map[string]string{api.MinCPUAnnotation: "200m", api.MinMemoryAnnotation: "128Mi"},
			terms{mode: api.ModeLend, keep: res(200, 128)}, nil},
		{"other forms of bounds", map[string]string{api.MinCPUAnnotation: "1.5", api.MinMemoryAnnotation: "0.5Gi"},
			terms{mode: api.ModeLend, keep: res(1500, 512)}, nil},
		{"bounds of 0", map[string]string{api.MinCPUAnnotation: "0", api.MinMemoryAnnotation: "0"}, terms{mode: api.ModeLend}, nil},
		{"more than any container has", map[string]string{api.MinCPUAnnotation: "9E", api.MinMemoryAnnotation: "8E"},
			terms{mode: api.ModeLend, keep: api.Resources{CPUMilli: all, MemoryBytes: all}}, []string{`libra.dev/min-memory is "8E", want a whole number of bytes from 0 to 1Pi`}},
		{"a bad bound is of its resource alone", map[string]string{api.MinCPUAnnotation: "half", api.MinMemoryAnnotation: "64Mi"},
			terms{mode: api.ModeLend, keep: api.Resources{CPUMilli: all, MemoryBytes: 64 * mi}},
			[]string{`annotation libra.dev/min-cpu is "half", want an amount of CPU from 0, such as 200m or 1.5`}},
		{"below 0", map[string]string{api.MinCPUAnnotation: "-1", api.MinMemoryAnnotation: "-1Mi"},
			terms{mode: api.ModeLend, keep: api.Resources{CPUMilli: all, MemoryBytes: all}},
			[]string{`libra.dev/min-cpu is "-1"`, `libra.dev/min-memory is "-1Mi", want a whole number of bytes from 0 to 1Pi, such as 128Mi`}},
		{"a part of a byte", map[string]string{api.MinMemoryAnnotation: "128m"},
			terms{mode: api.ModeLend, keep: api.Resources{MemoryBytes: all}}, []string{`libra.dev/min-memory is "128m"`}},
		{"unit that is none", map[string]string{api.MinMemoryAnnotation: "128 MB"},
			terms{mode: api.ModeLend, keep: api.Resources{MemoryBytes: all}}, []string{`libra.dev/min-memory is "128 MB"`}},
		{"all bad", map[string]string{api.ModeAnnotation: "on", api.MinCPUAnnotation: "", api.MinMemoryAnnotation: strings.Repeat("9", 1000)},
			terms{mode: api.ModeObserve, keep: api.Resources{CPUMilli: all, MemoryBytes: all}}, []string{"libra.dev/mode", "libra.dev/min-cpu", "libra.dev/min-memory"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, refused := termsOf(tc.annotations, fixed{mode: api.ModeLend}.For("ns"))
			tc.want.safeguardPercent, tc.want.minLoan = 80, testMinLoan // as the settings say
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(terms{})); diff != "" {
				t.Error("termsOf() (-want, +got):\n" + diff)
			}
			if len(refused) != len(tc.refused) {
				t.Fatalf("refused %v, want %d", refused, len(tc.refused))
			}
			for i, want := range tc.refused {
				if err := refused[i].Error(); !strings.Contains(err, want) {
					t.Errorf("error %q, want %q in it", err, want)
				}
			}
		})
	}
}
