package report

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func function(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: fmt.Sprintf("shop-%d", i%100), Name: fmt.Sprintf("thumbnails-%05d", i)}
}

// randomRecord returns a record with that many functions, as busy as in a real slot.
func randomRecord(functions int, random *rand.Rand) Record {
	r := Record{}
	for i := range functions {
		var s Sums
		s[Requests] = 1 + random.Int64N(1000)
		s[CouldLendCPU] = random.Int64N(1e12)
		s[CouldLendMemory] = random.Int64N(1e12)
		s[WouldBorrowCPU] = random.Int64N(1e9)
		s[FoundLearned] = 1 + random.Int64N(12)
		s[Mode] = s[Requests]
		r.Add(function(i), &s)
	}
	return r
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	most := Sums{}
	for i := range most {
		most[i] = math.MaxInt64 - int64(i)
	}
	for name, want := range map[string]Record{
		"none": {},
		"one":  {function(1): &Sums{Requests: 1}},
		"most": {function(1): &most, function(2): &Sums{}},
		"many": randomRecord(1000, rand.New(rand.NewPCG(1, 2))),
	} {
		encoded, err := Encode(want)
		if err != nil {
			t.Fatal(name, err)
		}
		got := Record{}
		if err := Decode(encoded, got); err != nil {
			t.Fatal(name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestOfTooManyFunctionsThoseWithTheMostRequestsAreKept(t *testing.T) {
	r := Record{}
	for i := range MaxFunctions + 10 {
		r.Add(function(i), &Sums{Requests: int64(i)})
	}
	encoded, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	got := Record{}
	if err := Decode(encoded, got); err != nil {
		t.Fatal(err)
	}
	if len(got) != MaxFunctions || got[function(9)] != nil || got[function(10)] == nil {
		t.Errorf("%d functions are kept, want %d without the ten that had the fewest requests", len(got), MaxFunctions)
	}
}

// compressed returns a record with the given text.
func compressed(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteByte(version)
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// text returns the text of a function with fields.
func text(fields []int64) []byte {
	b := binary.AppendUvarint(nil, uint64(len(fields)))
	b = append(b, "\x01a\x01b"...)
	for _, n := range fields {
		b = binary.AppendVarint(b, n)
	}
	return b
}

func TestARecordWithMoreOrFewerFieldsIsRead(t *testing.T) {
	for name, fields := range map[string][]int64{"fewer": {3, 4}, "more": make([]int64, Fields+5)} {
		fields[0] = 3
		got := Record{}
		if err := Decode(compressed(t, text(fields)), got); err != nil {
			t.Error(name, err)
		} else if s := got[types.NamespacedName{Namespace: "a", Name: "b"}]; s == nil || s[Requests] != 3 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhatCannotBeReadAddsNothing(t *testing.T) {
	whole, err := Encode(randomRecord(3, rand.New(rand.NewPCG(1, 2))))
	if err != nil {
		t.Fatal(err)
	}
	negative, long := make([]int64, Fields), binary.AppendUvarint(binary.AppendUvarint(nil, uint64(Fields)), maxName+1)
	negative[3] = -1
	for name, broken := range map[string][]byte{
		"empty":           nil,
		"another version": append([]byte{version + 1}, whole[1:]...),
		"cut off":         whole[:len(whole)/2],
		"not compressed":  append([]byte{version}, "plain"...),
		"negative":        compressed(t, text(negative)),
		"a long name":     compressed(t, append(long, strings.Repeat("a", maxName+1)...)),
		"no name":         compressed(t, append(binary.AppendUvarint(nil, uint64(Fields)), 0, 0)),
		"too many fields": compressed(t, text(make([]int64, 1025))),
		// A good function, followed by half of one.
		"half a function": compressed(t, append(text(make([]int64, Fields)), "\x01a\x01"...)),
	} {
		got := Record{}
		if err := Decode(broken, got); err == nil || len(got) != 0 {
			t.Errorf("%s: read %v (error: %v), want an error and nothing", name, got, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	whole, err := Encode(randomRecord(3, rand.New(rand.NewPCG(1, 2))))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, encoded []byte) {
		got := Record{}
		if err := Decode(encoded, got); err != nil && len(got) != 0 {
			t.Errorf("read %v with the error %v", got, err)
		}
	})
}

// One activator sends this for 10,000 revisions that all had requests within a minute.
func BenchmarkEncode(b *testing.B) {
	r := randomRecord(10_000, rand.New(rand.NewPCG(1, 2)))
	var encoded []byte
	for b.Loop() {
		var err error
		if encoded, err = Encode(r); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(encoded)), "encoded-B")
}
