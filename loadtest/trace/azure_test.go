package trace

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A day of three minutes: aa/app1/f1 has two triggers, f2 no durations, f3 no
// calls, f4 durations that decrease, f5 no memory.
const (
	invocationsCSV = `HashOwner,HashApp,HashFunction,Trigger,1,2,3
aa,app1,f1,timer,1,0,1
aa,app1,f1,http,0,2,0
aa,app1,f2,http,1,1,1
aa,app1,f3,http,0,0,0
bb,app2,f4,http,1,1,1
bb,app3,f5,queue,0,0,70000
`
	durationsCSV = `HashOwner,HashApp,HashFunction,Average,Count,Minimum,Maximum,percentile_Average_0,percentile_Average_1,percentile_Average_25,percentile_Average_50,percentile_Average_75,percentile_Average_99,percentile_Average_100
aa,app1,f1,5,2,1,9,9,9,9,9,9,9,9
aa,app1,f1,5,4,1,9,1,2,3,4,5,6,7
aa,app1,f3,5,4,1,9,1,2,3,4,5,6,7
bb,app2,f4,5,4,1,9,1,2,3,4,3,6,7
bb,app3,f5,5,4,1,9,0,0,0.5,1,2,100,1000
`
	memoryCSV = `HashOwner,HashApp,SampleCount,AverageAllocatedMb,AverageAllocatedMb_pct1
aa,app1,10,12.5,3
`
)

func load(invocations, durations, memory string) (Trace, error) {
	return Load(Source{"invocations.csv", strings.NewReader(invocations)},
		Source{"durations.csv", strings.NewReader(durations)}, Source{"memory.csv", strings.NewReader(memory)})
}

func TestLoad(t *testing.T) {
	got, err := load(invocationsCSV, durationsCSV, memoryCSV)
	if err != nil {
		t.Fatal(err)
	}
	want := Trace{
		First: 1, Minutes: 3,
		Functions: []Function{
			{ID: "aa/app1/f1", Trigger: "timer", PerMinute: []int32{1, 2, 1}, Durations: Durations{1, 2, 3, 4, 5, 6, 7}, MemoryMB: 12.5},
			{ID: "bb/app3/f5", Trigger: "queue", PerMinute: []int32{0, 0, 70000}, Durations: Durations{0, 0, 0.5, 1, 2, 100, 1000}},
		},
		Dropped: map[string]int{"never called": 1, "no durations": 1, "invalid duration percentiles": 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
}

// Slices are made by tools that order columns in their own way.
func TestLoadFindsColumnsByName(t *testing.T) {
	memory := "HashFunction,HashOwner,HashApp,AverageAllocatedMb\nf1,aa,app1,12.5\n"
	invocations := "Trigger,480,481,HashFunction,HashApp,HashOwner\ntimer,3,4,f1,app1,aa\n"
	got, err := load(invocations, durationsCSV, memory)
	if err != nil {
		t.Fatal(err)
	}
	if got.First != 480 || got.Minutes != 2 || len(got.Functions) != 1 {
		t.Fatalf("got %d functions from minute %d on, %d minutes; want 1, 480 and 2", len(got.Functions), got.First, got.Minutes)
	}
	if f := got.Functions[0]; f.ID != "aa/app1/f1" || !cmp.Equal(f.PerMinute, []int32{3, 4}) || f.MemoryMB != 12.5 {
		t.Errorf("got %+v", f)
	}
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		invocations, durations, memory string
		want                           []string
	}{
		"another file":   {durationsCSV, durationsCSV, memoryCSV, []string{"invocations.csv", "no column Trigger", "HashFunction"}},
		"empty":          {invocationsCSV, "", memoryCSV, []string{"durations.csv", "empty"}},
		"no minutes":     {"HashOwner,HashApp,HashFunction,Trigger\n", durationsCSV, memoryCSV, []string{"invocations.csv", "minutes", "1440"}},
		"missing minute": {strings.Replace(invocationsCSV, "1,2,3", "1,2,4", 1), durationsCSV, memoryCSV, []string{"invocations.csv", "column 7", "minute 4, after minute 2"}},
		"not a number":   {strings.Replace(invocationsCSV, "0,2,0", "0,x,0", 1), durationsCSV, memoryCSV, []string{"invocations.csv, line 3", `2 is "x"`, "0 or more"}},
		"negative":       {strings.Replace(invocationsCSV, "0,2,0", "0,-2,0", 1), durationsCSV, memoryCSV, []string{"line 3", `"-2"`}},
		"memory":         {invocationsCSV, durationsCSV, strings.Replace(memoryCSV, "12.5", "much", 1), []string{"memory.csv, line 2", "AverageAllocatedMb", `"much"`, "a number"}},
		"other days":     {invocationsCSV, strings.ReplaceAll(durationsCSV, ",f", ",g"), memoryCSV, []string{"same day"}},
		"cut off":        {invocationsCSV + "aa,app1\n", durationsCSV, memoryCSV, []string{"invocations.csv", "line 8"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(c.invocations, c.durations, c.memory)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not have %q", err, want)
				}
			}
		})
	}
}

func TestDurationsAt(t *testing.T) {
	d := Durations{0, 0, 0.5, 1, 2, 100, 1000}
	for rank, want := range map[float64]float64{-1: 0, 0: 0, 0.25: 0.5, 0.5: 1, 1: 1000, 2: 1000,
		// Halfway from 2 to 100 ms, on a logarithmic scale of ms + 1.
		0.87: math.Sqrt(3*101) - 1,
	} {
		if got := d.At(rank); math.Abs(got-want) > 1e-6 {
			t.Errorf("at %v: %v ms, want %v", rank, got, want)
		}
	}
}
