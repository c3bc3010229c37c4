package agent

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

const mib = 1 << 20

func TestPlan(t *testing.T) {
	cpuOnly := func(pod string, owed, due, inForce int64) view {
		return view{pod: pod, owed: api.Resources{CPUMilli: owed}, due: api.Resources{CPUMilli: due}, inForce: api.Resources{CPUMilli: inForce}}
	}
	memoryOnly := func(pod string, owed, due, inForce, keep int64) view {
		return view{pod: pod, owed: api.Resources{MemoryBytes: owed}, due: api.Resources{MemoryBytes: due},
			inForce: api.Resources{MemoryBytes: inForce}, keep: keep}
	}
	for name, tc := range map[string]struct {
		views   []view
		forgive bool
		want    []write
	}{
		"whole": {views: []view{cpuOnly("a", 500, 500, 500)}},
		"an increase waits for what pays for it": {
			views: []view{cpuOnly("borrower", 500, 700, 500), cpuOnly("donor", 500, 300, 500)},
			want:  []write{{"donor", cpu, lower, 300}},
		},
		"an increase that was paid for": {
			views: []view{cpuOnly("borrower", 500, 700, 500), cpuOnly("donor", 500, 300, 300)},
			want:  []write{{"borrower", cpu, raise, 700}},
		},
		"a part of it was paid for": {
			views: []view{cpuOnly("borrower", 500, 700, 500), cpuOnly("donor", 500, 300, 400)},
			want:  []write{{"donor", cpu, lower, 300}, {"borrower", cpu, raise, 600}},
		},
		"a restore does not wait for its borrower": {
			views: []view{cpuOnly("borrower", 500, 500, 700), cpuOnly("donor", 500, 500, 300)},
			want:  []write{{"donor", cpu, restore, 500}, {"borrower", cpu, lower, 500}},
		},
		"a donor keeps what nobody takes": {
			views: []view{cpuOnly("donor", 500, 300, 500)},
		},
		"a borrower that nobody pays for is shrunk": {
			views: []view{cpuOnly("borrower", 500, 700, 700), cpuOnly("donor", 500, 500, 500)},
			want:  []write{{"borrower", cpu, lower, 500}},
		},
		"unless the news is on its way": {
			views:   []view{cpuOnly("borrower", 500, 700, 700), cpuOnly("donor", 500, 500, 300)},
			forgive: true,
			want:    []write{{"donor", cpu, restore, 500}},
		},
		"what a borrower uses stays with it": {
			views: []view{memoryOnly("borrower", 256*mib, 256*mib, 400*mib, 350*mib), memoryOnly("donor", 256*mib, 256*mib, 112*mib, 50*mib)},
			want:  []write{{"donor", memory, restore, 256 * mib}, {"borrower", memory, lower, 350 * mib}},
		},
		"which is followed in steps": {
			views: []view{memoryOnly("borrower", 256*mib, 256*mib, 351*mib, 350*mib)},
		},
		"a limit that is not there": {
			views: []view{cpuOnly("a", 500, 500, 0), cpuOnly("borrower", 500, 700, 500), cpuOnly("donor", 500, 300, 300)},
			want:  []write{{"a", cpu, lower, 500}},
		},
	} {
		if diff := cmp.Diff(tc.want, plan(tc.views, tc.forgive), cmp.AllowUnexported(write{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func drawViews(t *rapid.T) []view {
	volume := func(label string) api.Resources {
		return api.Resources{
			CPUMilli:    rapid.Int64Range(0, 20).Draw(t, label+" cpu") * 100,
			MemoryBytes: rapid.Int64Range(0, 64).Draw(t, label+" memory") * 8 * mib,
		}
	}
	views := make([]view, rapid.IntRange(1, 6).Draw(t, "containers"))
	for i := range views {
		v := view{pod: fmt.Sprint(i), owed: volume("owed"), due: volume("due"), inForce: volume("in force"),
			keep: rapid.Int64Range(0, 600).Draw(t, "keep") * mib}
		for _, r := range resources {
			if *r.of(&v.owed) == 0 {
				*r.of(&v.due) = 0
			} else {
				*r.of(&v.due) = max(1, *r.of(&v.due))
			}
		}
		views[i] = v
	}
	return views
}

// pinsOf is what memory above what is owed and due is kept because it is in use.
func pinsOf(v view) int64 {
	return max(0, min(v.inForce.MemoryBytes, v.keep+leastStep)-max(v.owed.MemoryBytes, v.due.MemoryBytes))
}

func inForceSum(views []view, r resource) (over, pins int64) {
	for _, v := range views {
		if *r.of(&v.owed) == 0 {
			continue
		}
		limit := *r.of(&v.inForce)
		if limit == 0 {
			limit = noLimit
		}
		over += limit - *r.of(&v.owed)
		if r == memory {
			pins += pinsOf(v)
		}
	}
	return over, pins
}

// Whatever is in force at first and whichever writes fail: no write but a restore
// leads to more in force than is owed and pinned; restores come first, and wait for
// nothing; memory is never set below what is kept; what has no limit of the user's is
// not touched; and it comes to rest.
func TestPlanKeepsTheInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		views := drawViews(t)
		forgive := rapid.Bool().Draw(t, "forgive")
		failures := rapid.IntRange(0, 5).Draw(t, "failures")
		for range 40 {
			writes := plan(views, forgive)
			if len(writes) == 0 {
				checkRest(t, views, forgive)
				return
			}
			if !slices.IsSortedFunc(writes, func(a, b write) int { return int(a.direction - b.direction) }) {
				t.Fatalf("not restores, decreases and increases in this order: %v", writes)
			}
			for i, v := range views {
				for _, r := range resources {
					limit, whole := *r.of(&v.inForce), min(*r.of(&v.due), *r.of(&v.owed))
					if limit == 0 || limit >= whole || *r.of(&v.owed) == 0 {
						continue
					}
					if !slices.ContainsFunc(writes, func(w write) bool {
						return w.pod == views[i].pod && w.resource == r && w.direction == restore && w.to >= whole
					}) {
						t.Fatalf("%v of %+v is not restored by %v", r, v, writes)
					}
				}
			}
			for _, w := range writes {
				i := slices.IndexFunc(views, func(v view) bool { return v.pod == w.pod })
				v := &views[i]
				owed, limit := *w.resource.of(&v.owed), w.resource.of(&v.inForce)
				if owed == 0 {
					t.Fatalf("%v touches a resource without a limit", w)
				}
				if w.resource == memory && w.direction == lower && *limit != 0 && w.to < min(*limit, v.keep) {
					t.Fatalf("%v lowers memory below what is kept: %+v", w, *v)
				}
				if failures > 0 && rapid.Bool().Draw(t, "fails") {
					failures--
					continue
				}
				*limit = w.to
				if w.direction != raise {
					continue
				}
				if over, pins := inForceSum(views, w.resource); over > pins {
					t.Fatalf("after %v there is %d more in force than is owed and pinned: %+v", w, over-pins, views)
				}
			}
		}
		t.Fatal("it does not come to rest")
	})
}

func checkRest(t *rapid.T, views []view, forgive bool) {
	for _, r := range resources {
		over, _ := inForceSum(views, r)
		if r == memory {
			// What is kept, in use or by the width of a step, may exceed what is owed.
			for _, v := range views {
				if v.owed.MemoryBytes != 0 {
					over -= max(0, min(v.inForce.MemoryBytes, v.keep+leastStep)-min(v.owed.MemoryBytes, v.due.MemoryBytes)) + leastStep
				}
			}
		}
		if over > 0 && !forgive {
			t.Fatalf("at rest %d more %v is in force than is owed: %+v", over, r, views)
		}
	}
}

func TestMargins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		used := rapid.Int64Range(0, 1<<40).Draw(t, "used")
		threshold := rapid.Float64Range(0, 1).Draw(t, "threshold")
		if kept := pinned(used); kept < used+used/10 || kept < used+32*mib {
			t.Fatalf("pinned(%d) = %d: a margin of 32 MiB and of a tenth is missing", used, kept)
		}
		limit := roomy(used, threshold)
		if limit < pinned(used) {
			t.Fatalf("the floor %d of %d bytes in use at threshold %v has not the margin", limit, used, threshold)
		}
		if limit >= mostBytes {
			return // nothing is lent
		}
		var w watch
		owed := api.Resources{MemoryBytes: limit + 1}
		lowered := sample{at: epoch, Reading: readingOf(0, 0, used, limit)}
		if _, trips := w.add(lowered, owed, threshold); trips {
			t.Fatalf("%d bytes in use trip the safeguard at the floor %d and threshold %v", used, limit, threshold)
		}
	})
}
