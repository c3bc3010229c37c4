package evaluation

import "fmt"

// Failure is a request that was not answered, or not rightly.
type Failure struct {
	Policy, Workload string
	Round            int
	N                int // the request's place in the schedule
	Function         string
	Error            string
}

// input is a function with one of its inputs, in a workload.
type input struct {
	workload, function string
	input              int
}

// failures are, of all runs, the requests with an error, those that nothing is known of,
// and the answers that are not stock's to the same function and input.
func failures(d Data) []Failure {
	right := map[input]string{}
	for _, run := range d.Runs {
		for _, r := range run.Results {
			key := input{run.Workload, r.Function, r.Input}
			if _, ok := right[key]; !ok && run.Policy == Stock && r.Error == "" {
				right[key] = r.Answer
			}
		}
	}
	var failed []Failure
	for _, run := range d.Runs {
		add := func(n int, function, problem string) {
			failed = append(failed, Failure{run.Policy, run.Workload, run.Round, n, function, problem})
		}
		seen := map[int]bool{}
		for _, r := range run.Results {
			seen[r.N] = true
			want, ok := right[input{run.Workload, r.Function, r.Input}]
			switch {
			case r.Error != "":
				add(r.N, r.Function, r.Error)
			case ok && r.Answer != want:
				add(r.N, r.Function, fmt.Sprintf("the answer is %s; in stock it was %s", r.Answer, want))
			}
		}
		missing := run.Planned - len(seen)
		for n := 0; missing > 0; n++ {
			if !seen[n] {
				add(n, "", "it was never sent, or nothing is known of it")
				missing--
			}
		}
	}
	return failed
}
