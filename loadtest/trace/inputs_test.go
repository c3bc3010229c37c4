package trace

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/functions/inputs"
)

// doubling makes inputs of which each is twice as large as the one before, in
// another order.
func doubling(_ string, n int) (inputs.Input, error) {
	size := 100 << (n * 7 % 10)
	return inputs.Input{Body: bytes.Repeat([]byte{0xff}, size), Expect: map[string]int64{"bytes": int64(size)}}, nil
}

func TestFillChoosesBySize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv := Invocation{Function: "uploader", AtMS: 7, Seed: rapid.Uint32().Draw(t, "seed"), Place: rapid.Float64Range(0, 1).Draw(t, "place")}
		entries, corpus, err := Fill([]Invocation{{Function: "pagerank"}, inv}, 10, doubling, []byte("corpus"))
		if err != nil {
			t.Fatal(err)
		}
		e := entries[1]
		if e.N != 1 || e.AtMS != 7 || e.Function != "uploader" || e.Expect["bytes"] != int64(e.Size) || e.Size != 100<<(e.Input*7%10) {
			t.Fatalf("got %+v", e)
		}
		// Only bodies that are sent are written.
		if len(corpus) > len("corpus")+entries[0].Size+e.Size {
			t.Fatalf("a corpus of %d bytes for inputs of %d and %d", len(corpus), entries[0].Size, e.Size)
		}
		if body := corpus[e.Offset : e.Offset+e.Size]; e.Body != "" || bytes.Count(body, []byte{0xff}) != e.Size {
			t.Fatalf("input %d of %d bytes is not in the corpus at %d", e.Input, e.Size, e.Offset)
		}
		place := math.Log2(float64(e.Size)/100) / 9
		if math.Abs(place-inv.Place)*9 > 2 || e.SizeClass != classOf(place) {
			t.Fatalf("place %v got %d bytes, class %s", inv.Place, e.Size, e.SizeClass)
		}
	})
}

func TestFillChoosesBySeedWhereTheContentDecides(t *testing.T) {
	drawn := map[int]int{}
	draw := func(_ string, n int) (inputs.Input, error) {
		drawn[n]++
		return inputs.Input{Body: fmt.Appendf(nil, `{"n":%d}`, n)}, nil
	}
	var plan []Invocation
	for i := range uint32(8) {
		plan = append(plan, Invocation{Function: "pagerank", Seed: i})
	}
	entries, _, err := Fill(plan, 4, draw, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range entries {
		if e.SizeClass != Any || e.Input != i%4 || e.Body != fmt.Sprintf(`{"n":%d}`, i%4) {
			t.Errorf("entry %d: %+v", i, e)
		}
	}
	for n, times := range drawn {
		if times != 1 {
			t.Errorf("input %d was drawn %d times", n, times)
		}
	}
}

func TestFillCutsBodiesOutOfTheCorpus(t *testing.T) {
	corpus := []byte("0123456789")
	draw := func(string, int) (inputs.Input, error) {
		return inputs.Input{Body: corpus[2:5], Cut: true, Offset: 2}, nil
	}
	entries, longer, err := Fill([]Invocation{{Function: "uploader"}}, 1, draw, corpus)
	if err != nil {
		t.Fatal(err)
	}
	if e := entries[0]; e.Body != "" || e.Size != 3 || e.Offset != 2 || len(longer) != len(corpus) {
		t.Errorf("got %+v and a corpus of %d bytes", e, len(longer))
	}
}

func TestFillSaysWhatIsWrong(t *testing.T) {
	plan := []Invocation{{Function: "uploader"}}
	if _, _, err := Fill(plan, 0, doubling, nil); err == nil {
		t.Error("no inputs: no error")
	}
	failed := errors.New("no such function")
	for _, function := range []string{"uploader", "pagerank"} {
		_, _, err := Fill([]Invocation{{Function: function}}, 3, func(string, int) (inputs.Input, error) { return inputs.Input{}, failed }, nil)
		if !errors.Is(err, failed) {
			t.Errorf("%s: %v, want %v", function, err, failed)
		}
	}
	_, _, err := Fill(plan, 3, func(string, int) (inputs.Input, error) { return inputs.Input{}, nil }, nil)
	if err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("an empty input: %v", err)
	}
}

// From trace to schedule, as the command does it.
func TestScheduleOfAGeneratedTrace(t *testing.T) {
	tr, err := Generate(1, Azure2019, 100, 480)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Plan(tr, Options{Seed: 1, PerMinute: 120, Length: 82500 * time.Millisecond, Functions: Mixed, Skew: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	entries, _, err := Fill(plan, 10, doubling, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 165 {
		t.Errorf("%d entries, want the paper's 165", len(entries))
	}
	functions, classes := map[string]int{}, map[SizeClass]int{}
	for _, e := range entries {
		functions[e.Function]++
		classes[e.SizeClass]++
	}
	for _, f := range Mixed {
		if functions[f] < 2 {
			t.Errorf("%d requests to %s; there are %v", functions[f], f, functions)
		}
	}
	for _, c := range []SizeClass{Small, Medium, Large, Any} {
		if classes[c] < 10 {
			t.Errorf("%d requests of class %s; there are %v", classes[c], c, classes)
		}
	}
}
