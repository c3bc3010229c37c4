package agent

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const mib = 1 << 20

func TestPlan(t *testing.T) {
	for name, tc := range map[string]struct {
		views   []view
		forgive bool
		want    []write
	}{
		"whole": {views: []view{{"a", 500, 500, 500}}},
		"an increase waits for what pays for it": {
			views: []view{{"borrower", 500, 700, 500}, {"donor", 500, 300, 500}},
			want:  []write{{"donor", lower, 300}},
		},
		"an increase that was paid for": {
			views: []view{{"borrower", 500, 700, 500}, {"donor", 500, 300, 300}},
			want:  []write{{"borrower", raise, 700}},
		},
		"a part of it was paid for": {
			views: []view{{"borrower", 500, 700, 500}, {"donor", 500, 300, 400}},
			want:  []write{{"donor", lower, 300}, {"borrower", raise, 600}},
		},
		"a restore does not wait for its borrower": {
			views: []view{{"borrower", 500, 500, 700}, {"donor", 500, 500, 300}},
			want:  []write{{"donor", restore, 500}, {"borrower", lower, 500}},
		},
		"a donor keeps what nobody takes": {
			views: []view{{"donor", 500, 300, 500}},
		},
		"a borrower that nobody pays for is shrunk": {
			views: []view{{"borrower", 500, 700, 700}, {"donor", 500, 500, 500}},
			want:  []write{{"borrower", lower, 500}},
		},
		"unless the news is on its way": {
			views:   []view{{"borrower", 500, 700, 700}, {"donor", 500, 500, 300}},
			forgive: true,
			want:    []write{{"donor", restore, 500}},
		},
		"a limit that is not there": {
			views: []view{{"a", 500, 500, 0}, {"borrower", 500, 700, 500}, {"donor", 500, 300, 300}},
			want:  []write{{"a", lower, 500}},
		},
		"nothing is owed": {views: []view{{"a", 0, 0, 2000}}},
	} {
		if diff := cmp.Diff(tc.want, plan(tc.views, tc.forgive), cmp.AllowUnexported(write{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func drawViews(t *rapid.T) []view {
	milli := func(label string) int64 { return rapid.Int64Range(0, 20).Draw(t, label) * 100 }
	views := make([]view, rapid.IntRange(1, 6).Draw(t, "containers"))
	for i := range views {
		v := view{fmt.Sprint(i), milli("owed"), max(1, milli("due")), milli("in force")}
		if v.owed == 0 {
			v.due = 0
		}
		views[i] = v
	}
	return views
}

// over returns how much more is in force than is owed.
func over(views []view) (over int64) {
	for _, v := range views {
		switch {
		case v.owed == 0:
		case v.inForce == 0:
			over += noLimit
		default:
			over += v.inForce - v.owed
		}
	}
	return over
}

// Whatever is in force at first and whichever writes fail: only restores lead to more in force
// than is owed; restores come first and wait for nothing; containers without a user's limit are
// not touched; and the plan comes to rest.
func TestPlanKeepsTheInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		views := drawViews(t)
		forgive := rapid.Bool().Draw(t, "forgive")
		failures := rapid.IntRange(0, 5).Draw(t, "failures")
		for range 40 {
			writes := plan(views, forgive)
			if len(writes) == 0 {
				if over(views) > 0 && !forgive {
					t.Fatalf("at rest %d more is in force than is owed: %+v", over(views), views)
				}
				return
			}
			if !slices.IsSortedFunc(writes, func(a, b write) int { return int(a.direction - b.direction) }) {
				t.Fatalf("not restores, decreases and increases in this order: %v", writes)
			}
			for _, v := range views {
				whole := min(v.due, v.owed)
				if v.inForce == 0 || v.inForce >= whole || v.owed == 0 {
					continue
				}
				if !slices.ContainsFunc(writes, func(w write) bool { return w.pod == v.pod && w.direction == restore && w.to >= whole }) {
					t.Fatalf("%+v is not restored by %v", v, writes)
				}
			}
			for _, w := range writes {
				v := &views[slices.IndexFunc(views, func(v view) bool { return v.pod == w.pod })]
				if v.owed == 0 {
					t.Fatalf("%v touches what has no limit", w)
				}
				if failures > 0 && rapid.Bool().Draw(t, "fails") {
					failures--
					continue
				}
				v.inForce = w.to
				if w.direction == raise && over(views) > 0 {
					t.Fatalf("after %v there is %d more in force than is owed: %+v", w, over(views), views)
				}
			}
		}
		t.Fatal("it does not come to rest")
	})
}
