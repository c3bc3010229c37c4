// Package schedule makes the load for chaos, and for Libra's lessons before end-to-end
// tests: which request goes to which function, and when. The same seed always makes the
// same requests.
package schedule

import (
	"cmp"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"libra.dev/libra/loadtest/functions/inputs"
)

// Plain is the service that did not opt in to Libra.
const Plain = "plain"

// Functions are the functions that opted in: two over-provisioned ones, an
// under-provisioned one, and one whose cost follows the content.
var Functions = []string{"uploader", "dynamichtml", "compression", "pagerank"}

// All are the functions and the service that did not opt in.
var All = append(slices.Clone(Functions), Plain)

// Request is one request of a schedule, as the k6 script reads it.
type Request struct {
	N        int    `json:"n"` // its place in the schedule
	AtMS     int64  `json:"at_ms"`
	Function string `json:"function"`
	Size     int    `json:"size"` // of the body, in bytes
	// Body is the body. If it is empty, the body is Size bytes of the corpus at Offset.
	Body   string `json:"body,omitempty"`
	Offset int    `json:"offset,omitempty"`
	// Expect is what the answer must say the function did.
	Expect map[string]int64 `json:"expect"`
}

// BodyFrom returns the body, which may be part of the corpus.
func (r Request) BodyFrom(corpus []byte) []byte {
	if r.Body == "" {
		return corpus[r.Offset : r.Offset+r.Size]
	}
	return []byte(r.Body)
}

// load is how one function is called. The next request is due a pause after the
// last one should have been answered at the function's own limits: an open loop
// in which one function's requests seldom wait for each other.
type load struct {
	minPause, maxPause time.Duration
	// draw makes a request and says how long its answer should take.
	draw func(rng *rand.Rand, corpus []byte) (Request, time.Duration)
}

// Durations are at the limits in the functions' manifests; README.md in
// loadtest/functions has the measurements.
var loads = map[string]load{
	"uploader": {300 * time.Millisecond, 1500 * time.Millisecond, func(rng *rand.Rand, corpus []byte) (Request, time.Duration) {
		r := requestOf(inputs.Cut(rng, corpus, inputs.LogUniform(rng, 256<<10, 3<<20)))
		return r, perUnit(r.Size, 1600*time.Nanosecond)
	}},
	"dynamichtml": {300 * time.Millisecond, 1200 * time.Millisecond, func(rng *rand.Rand, _ []byte) (Request, time.Duration) {
		r := requestOf(inputs.Order(rng, inputs.LogUniform(rng, 200, 4000)))
		return r, perUnit(int(r.Expect["rows"]), 830*time.Microsecond)
	}},
	"compression": {1000 * time.Millisecond, 3000 * time.Millisecond, func(rng *rand.Rand, corpus []byte) (Request, time.Duration) {
		r := requestOf(inputs.Cut(rng, corpus, inputs.LogUniform(rng, 256<<10, 5<<20)))
		return r, perUnit(r.Size, 520*time.Nanosecond)
	}},
	"pagerank": {800 * time.Millisecond, 2200 * time.Millisecond, func(rng *rand.Rand, _ []byte) (Request, time.Duration) {
		r := requestOf(inputs.Ranking(rng, inputs.LogUniform(rng, 50_000, 3_000_000)))
		return r, perUnit(int(r.Expect["edges"]), 100*time.Nanosecond)
	}},
	// More than 100 in a run, so that their P99 is not just the worst.
	Plain: {300 * time.Millisecond, 700 * time.Millisecond, func(rng *rand.Rand, corpus []byte) (Request, time.Duration) {
		return requestOf(inputs.Cut(rng, corpus, inputs.LogUniform(rng, 1<<10, 64<<10))), 0
	}},
}

// Generate makes a schedule of length, in the order of its times.
func Generate(seed uint64, length time.Duration, corpus []byte) []Request {
	var requests []Request
	for _, function := range All {
		// Each function has its own random numbers, so that changing how one
		// is called leaves the others' requests as they were.
		name := fnv.New64a()
		name.Write([]byte(function))
		rng := rand.New(rand.NewPCG(seed, name.Sum64()))
		l := loads[function]
		pause := func() time.Duration {
			return l.minPause + time.Duration(rng.Int64N(int64(l.maxPause-l.minPause)))
		}
		for at := pause(); at < length; {
			r, takes := l.draw(rng, corpus)
			r.Function, r.AtMS = function, at.Milliseconds()
			requests = append(requests, r)
			at += takes + pause()
		}
	}
	slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.AtMS, b.AtMS) })
	for n := range requests {
		requests[n].N = n
	}
	return requests
}

// Smallest returns, of each function, the request with the smallest body.
func Smallest(requests []Request) map[string]Request {
	smallest := map[string]Request{}
	for _, r := range requests {
		if s, ok := smallest[r.Function]; !ok || r.Size < s.Size {
			smallest[r.Function] = r
		}
	}
	return smallest
}

func perUnit(units int, each time.Duration) time.Duration { return time.Duration(units) * each }

// requestOf returns the request that has an input for its body.
func requestOf(in inputs.Input) Request {
	r := Request{Size: len(in.Body), Expect: in.Expect}
	if in.Cut {
		r.Offset = in.Offset
	} else {
		r.Body = string(in.Body)
	}
	return r
}
