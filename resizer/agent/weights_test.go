package agent

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var (
	v1Weights = weightRange{2, 262_144}
	v2Weights = weightRange{1, 10_000}
)

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func TestLevel(t *testing.T) {
	tests := map[string]struct {
		work
		want int
	}{
		"little left":                {work{used: ms(90), predicted: ms(114)}, 0},
		"a little more left":         {work{used: ms(90), predicted: ms(115)}, 1},
		"some left":                  {work{predicted: ms(399)}, 2},
		"much left":                  {work{predicted: ms(400)}, 3},
		"as predicted":               {work{used: ms(50), predicted: ms(50)}, 3},
		"past its prediction":        {work{used: ms(51), predicted: ms(50)}, 3},
		"over soon, past that":       {work{used: ms(399), predicted: ms(49)}, 0},
		"over soon, long past that":  {work{used: ms(400), predicted: ms(49)}, 3},
		"not predicted, new":         {work{}, 0},
		"not predicted, has used 25": {work{used: ms(25)}, 1},
		"not predicted, has used 1s": {work{used: time.Second}, 3},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := (contender{works: []work{tc.work}}).level(); got != tc.want {
				t.Errorf("level %d, want %d", got, tc.want)
			}
		})
	}
}

// Requests in a pod share what the pod gets, and requests that are alike are done sooner
// together than one after the other.
func TestLevelOfSeveral(t *testing.T) {
	left := func(all ...int64) (works []work) {
		for _, each := range all {
			works = append(works, work{predicted: ms(each)})
		}
		return works
	}
	past := work{predicted: ms(60), used: ms(60)}
	for name, tc := range map[string]struct {
		works []work
		want  int
	}{
		"short alone":                {left(20), 0},
		"two short":                  {left(20, 20), 0},
		"two that are not alike":     {left(20, 24), 0},
		"short beside a long":        {left(20, 1000), 1},
		"short beside many":          {left(20, 100, 100, 100, 100, 100), 1},
		"shortest last":              {left(100, 20), 1},
		"past their predictions":     {[]work{past, past}, lastLevel},
		"past, beside what is known": {[]work{past, {predicted: ms(20)}}, 1},
		"short beside many long":     {left(20, 1000, 1000, 1000, 1000, 1000), 2},
		"not predicted":              {[]work{{used: ms(60)}, {used: ms(70)}}, 1},
	} {
		if got := (contender{works: tc.works}).level(); got != tc.want {
			t.Errorf("%s: level %d, want %d", name, got, tc.want)
		}
	}
}

func TestOwed(t *testing.T) {
	for _, tc := range []struct {
		allocation, ran, used int64
		want                  bool
	}{
		{500, 0, 49, true},
		{500, 0, 50, false},
		{500, 1000, 549, true},
		{500, 1000, 550, false},
		{2000, 100, 399, true},
	} {
		c := contender{allocation: tc.allocation, ran: ms(tc.ran), works: []work{{used: ms(tc.used) / 2}, {used: ms(tc.used) / 2}}}
		if got := c.owed(); got != tc.want {
			t.Errorf("owed is %v of one with %dm that has used %d ms in %d ms", got, tc.allocation, tc.used, tc.ran)
		}
	}
}

func TestWeigh(t *testing.T) {
	here := group{"burstable", "default"}
	short := contender{group: here, pod: "default/short", kubelet: 100, allocation: 500, works: []work{{predicted: ms(10)}}}
	long := contender{group: here, pod: "default/long", kubelet: 100, allocation: 500, works: []work{{predicted: time.Second}}}
	hog := contender{group: here, pod: "default/hog", kubelet: 100, allocation: 500, ran: time.Second, works: []work{{used: time.Second, predicted: ms(100)}}}
	strictShort, strictLong, strictHog := short, long, hog
	strictShort.strict, strictLong.strict, strictHog.strict = true, true, true
	elsewhere := hog
	elsewhere.group = group{"burstable", "other"}

	tests := map[string]struct {
		pods []contender
		want []int64
	}{
		"none":  {nil, []int64{}},
		"alone": {[]contender{hog}, []int64{100}},
		// 50 + 100 · 64/65 and 50 + 100 · 1/65
		"short before long": {[]contender{short, long}, []int64{148, 52}},
		// 50 + 137.5 · 256/257 and 12.5 + 137.5 · 1/257
		"owed before borrowing":                      {[]contender{short, hog}, []int64{187, 13}},
		"none gives way while it is owed, if strict": {[]contender{strictShort, strictLong}, []int64{100, 100}},
		// 100 + 87.5 · 256/257 and 12.5 + 87.5 · 1/257
		"owed before borrowing, if strict": {[]contender{strictShort, strictHog}, []int64{187, 13}},
		"groups do not exchange":           {[]contender{short, elsewhere}, []int64{100, 100}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, weigh(tc.pods, v1Weights)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// contenders are pods in flight in a few groups.
func contenders(limits weightRange) *rapid.Generator[[]contender] {
	return rapid.Custom(func(t *rapid.T) []contender {
		pods := make([]contender, rapid.IntRange(0, 40).Draw(t, "pods"))
		duration := rapid.OneOf(rapid.Int64Range(0, int64(time.Second)), rapid.Int64Range(0, int64(time.Hour)), rapid.Just(int64(0)))
		for i := range pods {
			pods[i] = contender{
				group:      group{fmt.Sprint(rapid.IntRange(0, 1).Draw(t, "parent")), fmt.Sprint(rapid.IntRange(0, 1).Draw(t, "namespace"))},
				pod:        fmt.Sprintf("ns/p%d", i),
				kubelet:    rapid.OneOf(rapid.Int64Range(limits.least, 100), rapid.Int64Range(limits.least, limits.most)).Draw(t, "kubelet"),
				allocation: rapid.OneOf(rapid.Int64Range(1, 4000), rapid.Int64Range(1, 1<<40)).Draw(t, "allocation"),
				strict:     rapid.Bool().Draw(t, "strict"),
				ran:        time.Duration(duration.Draw(t, "ran")),
				works:      make([]work, rapid.IntRange(1, 4).Draw(t, "works")),
			}
			for j := range pods[i].works {
				pods[i].works[j] = work{time.Duration(duration.Draw(t, "used")), time.Duration(duration.Draw(t, "predicted"))}
			}
		}
		return pods
	})
}

func TestWeighConserves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := rapid.SampledFrom([]weightRange{v1Weights, v2Weights}).Draw(t, "limits")
		pods := contenders(limits).Draw(t, "pods")
		weights := weigh(pods, limits)
		given, kubelets, members := map[group]int64{}, map[group]int64{}, map[group]int{}
		for i, p := range pods {
			given[p.group] += weights[i]
			kubelets[p.group] += p.kubelet
			members[p.group]++
			floor := float64(p.kubelet) / 8
			switch {
			case p.owed() && p.strict:
				floor = float64(p.kubelet)
			case p.owed():
				floor = float64(p.kubelet) / 2
			}
			if float64(weights[i]) <= floor-1 || weights[i] < limits.least || weights[i] > limits.most {
				t.Fatalf("%s has %d of its %d, where it is owed: %v", p.pod, weights[i], p.kubelet, p.owed())
			}
		}
		for g, sum := range given {
			if sum > kubelets[g] {
				t.Fatalf("%v has %d, where the kubelet gave %d", g, sum, kubelets[g])
			}
			if kubelets[g] <= limits.most && sum != kubelets[g] {
				t.Fatalf("%v has %d of the %d that the kubelet gave, though the kernel takes all", g, sum, kubelets[g])
			}
		}
		for i, p := range pods {
			if members[p.group] == 1 && weights[i] != p.kubelet {
				t.Fatalf("%s has %d though it is alone with its %d", p.pod, weights[i], p.kubelet)
			}
		}
	})
}

func TestWeighIsOfNoOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pods := contenders(v1Weights).Draw(t, "pods")
		byName := func(pods []contender) map[string]int64 {
			named := map[string]int64{}
			for i, weight := range weigh(pods, v1Weights) {
				named[pods[i].pod] = weight
			}
			return named
		}
		want := byName(pods)
		for range 3 {
			if got := byName(rapid.Permutation(pods).Draw(t, "permuted")); !maps.Equal(got, want) {
				t.Fatalf("weights %v, in another order %v", want, got)
			}
		}
	})
}

// More left of a request, or more use by its pod, never gives the pod more.
func TestWeighPrefersWhatIsDoneSoon(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pods := contenders(v1Weights).Filter(func(p []contender) bool { return len(p) > 0 }).Draw(t, "pods")
		i := rapid.IntRange(0, len(pods)-1).Draw(t, "pod")
		pods[i].works = []work{{predicted: time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(t, "predicted"))}}
		before := weigh(pods, v1Weights)[i]
		later := slices.Clone(pods)
		later[i].works = []work{{predicted: 4 * pods[i].works[0].predicted}}
		if after := weigh(later, v1Weights)[i]; after > before {
			t.Fatalf("%d with more left, %d with less", after, before)
		}
	})
}
