package trace

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawTrace(t *rapid.T) Trace {
	tr, err := Generate(rapid.Uint64().Draw(t, "trace"), Azure2019, rapid.IntRange(20, 120).Draw(t, "trace_functions"), rapid.IntRange(60, 300).Draw(t, "trace_minutes"))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func drawOptions(t *rapid.T, tr Trace) Options {
	from := rapid.IntRange(0, tr.Minutes/2).Draw(t, "from")
	return Options{
		Seed:      rapid.Uint64().Draw(t, "seed"),
		PerMinute: float64(rapid.IntRange(MinPerMinute, MaxPerMinute).Draw(t, "rpm")),
		Length:    time.Duration(rapid.IntRange(6_000, 600_000).Draw(t, "length_ms")) * time.Millisecond,
		From:      from,
		Minutes:   rapid.IntRange(0, tr.Minutes-from).Draw(t, "minutes"),
		Functions: rapid.SampledFrom([][]string{Mixed, Related, Unrelated, {"pagerank"}}).Draw(t, "functions"),
		Sample:    rapid.IntRange(0, 50).Draw(t, "sample"),
		Skew:      rapid.Float64Range(0, 1).Draw(t, "skew"),
	}
}

func TestPlanKeepsWhatItWasAsked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := drawTrace(t)
		o := drawOptions(t, tr)
		plan, err := Plan(tr, o)
		if err != nil {
			if !strings.Contains(err.Error(), "use more minutes") {
				t.Fatal(err)
			}
			return // this part of the trace has too few
		}
		again, _ := Plan(tr, o)
		if diff := cmp.Diff(plan, again); diff != "" {
			t.Fatalf("the same seed made another plan (-first +again):\n%s", diff)
		}
		if want := int(math.Round(o.PerMinute * o.Length.Minutes())); len(plan) != want {
			t.Fatalf("%d invocations, want %d", len(plan), want)
		}
		last, of := int64(0), map[string]string{}
		for i, inv := range plan {
			if inv.AtMS < last || inv.AtMS >= o.Length.Milliseconds() {
				t.Fatalf("invocation %d is at %d ms, after one at %d, in %v", i, inv.AtMS, last, o.Length)
			}
			last = inv.AtMS
			if !slices.Contains(o.Functions, inv.Function) || !(inv.Place >= 0 && inv.Place <= 1) || !(inv.DurationMS >= 0) {
				t.Fatalf("invocation %d is %+v", i, inv)
			}
			if before, seen := of[inv.Of]; seen && before != inv.Function {
				t.Fatalf("%s of the trace is both %s and %s", inv.Of, before, inv.Function)
			}
			of[inv.Of] = inv.Function
		}
	})
}

func TestApportionIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		calls := rapid.SliceOfN(rapid.IntRange(0, 2000), 1, 12).Draw(t, "calls")
		available := 0
		for _, c := range calls {
			available += c
		}
		skew := rapid.Float64Range(0, 1).Draw(t, "skew")
		want := rapid.IntRange(0, available).Draw(t, "want")
		shares := apportion(calls, skew, want)
		sum, none, two := 0, false, false
		for i, s := range shares {
			sum += s
			none = none || s == 0 && calls[i] > 0
			two = two || s > 1
			if s < 0 || s > calls[i] {
				t.Fatalf("%d of %d calls", s, calls[i])
			}
			for j := range shares {
				if calls[i] > calls[j] && s < shares[j] {
					t.Fatalf("%d requests for %d calls, %d for %d", s, calls[i], shares[j], calls[j])
				}
			}
		}
		if sum != want {
			t.Fatalf("%d requests in all, want %d", sum, want)
		}
		if none && two {
			t.Fatalf("%v of %v: one gets a second before another's first", shares, calls)
		}
	})
}

func TestApportionBySkew(t *testing.T) {
	calls := []int{9000, 90, 1000}
	for skew, want := range map[float64][]int{0: {60, 60, 60}, 1: {160, 2, 18}} {
		if got := apportion(calls, skew, 180); !cmp.Equal(got, want) {
			t.Errorf("skew %v: %v, want %v", skew, got, want)
		}
	}
}

// constant is a function with the same calls in every minute.
func constant(id, trigger string, calls int32, minutes int) Function {
	f := Function{ID: id, Trigger: trigger, PerMinute: make([]int32, minutes), Durations: Durations{1, 1, 10, 100, 1000, 10_000, 10_000}}
	for m := range f.PerMinute {
		f.PerMinute[m] = calls
	}
	return f
}

func TestPlanDealsBackAndForth(t *testing.T) {
	tr := Trace{Minutes: 10}
	for i := range 7 {
		tr.Functions = append(tr.Functions, constant(string(rune('a'+i)), "http", int32(100-i), 10))
	}
	slices.Reverse(tr.Functions)
	plan, err := Plan(tr, Options{Seed: 1, PerMinute: 300, Length: time.Minute, Functions: []string{"uploader", "pagerank", "compression"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, inv := range plan {
		got[inv.Of] = inv.Function
	}
	want := map[string]string{"a": "uploader", "b": "pagerank", "c": "compression", "d": "compression", "e": "pagerank", "f": "uploader", "g": "uploader"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mapping (-want +got):\n%s", diff)
	}
}

func TestPlanKeepsBurstsAndPauses(t *testing.T) {
	f := constant("f", "http", 0, 100)
	for m := 40; m < 50; m++ {
		f.PerMinute[m] = 1000
	}
	f.PerMinute[90] = 10_000
	plan, err := Plan(Trace{Minutes: 100, Functions: []Function{f}}, Options{Seed: 1, PerMinute: 100, Length: time.Minute, Functions: []string{"pagerank"}})
	if err != nil {
		t.Fatal(err)
	}
	burst, spike := 0, 0
	for _, inv := range plan {
		switch minute := inv.AtMS * 100 / 60_000; {
		case minute >= 40 && minute < 50:
			burst++
		case minute == 90:
			spike++
		default:
			t.Errorf("a request in minute %d, in which the trace has none", minute)
		}
	}
	if burst != 50 || spike != 50 {
		t.Errorf("%d and %d requests, want 50 each: half of the calls are in the burst", burst, spike)
	}
}

func TestPlanKeepsTimersRegular(t *testing.T) {
	tr := Trace{Minutes: 5, Functions: []Function{constant("f", TriggerTimer, 60, 5)}}
	plan, err := Plan(tr, Options{Seed: 1, PerMinute: 60, Length: 5 * time.Minute, Functions: []string{"pagerank"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(plan); i++ {
		if d := plan[i].AtMS - plan[i-1].AtMS; d < 999 || d > 1001 {
			t.Fatalf("%d ms between calls %d and %d of a timer, want 1000", d, i-1, i)
		}
	}
}

func TestPlanGivesTheLargestInputsToTheLongestCalls(t *testing.T) {
	tr := Trace{Minutes: 10, Functions: []Function{constant("f", "http", 100, 10)}}
	plan, err := Plan(tr, Options{Seed: 1, PerMinute: 300, Length: time.Minute, Functions: []string{"pagerank"}})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(plan, func(a, b Invocation) int { return int(math.Copysign(1, a.DurationMS-b.DurationMS)) })
	for i := 1; i < len(plan); i++ {
		if plan[i].Place < plan[i-1].Place {
			t.Fatalf("place %v for %v ms, %v for %v ms", plan[i].Place, plan[i].DurationMS, plan[i-1].Place, plan[i-1].DurationMS)
		}
	}
	if first, last := plan[0].Place, plan[len(plan)-1].Place; first != 0 || last != 1 {
		t.Errorf("places from %v to %v, want 0 to 1", first, last)
	}
}

func TestPlanSaysAllThatIsWrong(t *testing.T) {
	tr := Trace{Minutes: 10, Functions: []Function{constant("f", "http", 1, 10)}}
	_, err := Plan(tr, Options{PerMinute: 301, Length: time.Millisecond, From: 10, Minutes: -1, Sample: -1, Skew: math.NaN(), Functions: []string{"grep", "pagerank", "pagerank"}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"301", "10 to 300", "1ms", "1s to 24h", "minute 10", "0 to 9", "-1 minutes", "sample of -1", "NaN", `"grep"`, "uploader", "twice"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not have %q:\n%v", want, err)
		}
	}
	_, err = Plan(tr, Options{PerMinute: 10, Length: time.Second, Functions: Mixed})
	if err == nil || !strings.Contains(err.Error(), "less than one") {
		t.Errorf("a plan of no request: %v", err)
	}
	_, err = Plan(tr, Options{PerMinute: 120, Length: time.Minute, Functions: Mixed})
	if err == nil || !strings.Contains(err.Error(), "10 invocations") || !strings.Contains(err.Error(), "need 120") {
		t.Errorf("a trace with too few calls: %v", err)
	}
}
