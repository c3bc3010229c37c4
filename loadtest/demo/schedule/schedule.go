// Package schedule makes the demo's load: which request goes to which function
// when. The same seed always makes the same requests, so that two runs can be
// compared request by request.
package schedule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Plain is the service that did not opt in to Libra.
const Plain = "plain"

// Functions are those that opted in: over-provisioned, over-provisioned,
// under-provisioned, and the one whose cost follows the content.
var Functions = []string{"uploader", "dynamichtml", "compression", "pagerank"}

// All are the functions and the service that did not opt in.
var All = append(slices.Clone(Functions), Plain)

// Request is one request of a schedule, as the k6 script reads it.
type Request struct {
	N        int    `json:"n"` // its place in the schedule
	AtMS     int64  `json:"at_ms"`
	Function string `json:"function"`
	Size     int    `json:"size"` // of the body, in bytes
	// Body is the body, or empty: then it is Size bytes of the corpus at Offset.
	Body   string `json:"body,omitempty"`
	Offset int    `json:"offset,omitempty"`
	// Expect is what the answer must say it did.
	Expect map[string]int64 `json:"expect"`
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
		r := cut(rng, corpus, 256<<10, 3<<20)
		return r, perUnit(r.Size, 1600*time.Nanosecond)
	}},
	"dynamichtml": {300 * time.Millisecond, 1200 * time.Millisecond, func(rng *rand.Rand, _ []byte) (Request, time.Duration) {
		r := order(rng, 200, 4000)
		return r, perUnit(int(r.Expect["rows"]), 830*time.Microsecond)
	}},
	"compression": {1000 * time.Millisecond, 3000 * time.Millisecond, func(rng *rand.Rand, corpus []byte) (Request, time.Duration) {
		r := cut(rng, corpus, 256<<10, 5<<20)
		return r, perUnit(r.Size, 520*time.Nanosecond)
	}},
	"pagerank": {800 * time.Millisecond, 2200 * time.Millisecond, func(rng *rand.Rand, _ []byte) (Request, time.Duration) {
		r := graph(rng, 50_000, 3_000_000)
		return r, perUnit(int(r.Expect["edges"]), 100*time.Nanosecond)
	}},
	// More than 100 in a run, so that their P99 is not just the worst.
	Plain: {300 * time.Millisecond, 700 * time.Millisecond, func(rng *rand.Rand, corpus []byte) (Request, time.Duration) {
		return cut(rng, corpus, 1<<10, 64<<10), 0
	}},
}

// Generate makes the requests of length, in the order of their times.
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

// Smallest are the requests with the smallest body of each function.
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

// logUniform draws from low to high so that each doubling is as likely.
func logUniform(rng *rand.Rand, low, high float64) float64 {
	return low * math.Pow(high/low, rng.Float64())
}

// cut takes a body out of the corpus.
func cut(rng *rand.Rand, corpus []byte, low, high int) Request {
	size := int(logUniform(rng, float64(low), float64(high)))
	offset := rng.IntN(len(corpus) - size + 1)
	return Request{Size: size, Offset: offset, Expect: map[string]int64{
		"bytes": int64(size),
		"crc32": int64(crc32.ChecksumIEEE(corpus[offset : offset+size])),
	}}
}

// order asks for a page of some rows.
func order(rng *rand.Rand, low, high int) Request {
	ids := make([]int, int(logUniform(rng, float64(low), float64(high))))
	sum := 0
	for i := range ids {
		// Of equal length, so that the size tells the number of rows.
		ids[i] = 100_000 + rng.IntN(900_000)
		sum += ids[i]
	}
	return inline(struct {
		Title string `json:"title"`
		IDs   []int  `json:"ids"`
	}{"Parts in stock", ids}, map[string]int64{"rows": int64(len(ids)), "id_sum": int64(sum)})
}

// graph asks for the ranks of a graph whose cost the size does not tell.
func graph(rng *rand.Rand, low, high int) Request {
	edges := int(logUniform(rng, float64(low), float64(high)))
	nodes := edges / (5 + rng.IntN(20))
	return inline(struct {
		Seed      uint32  `json:"seed"`
		Nodes     int     `json:"nodes"`
		Edges     int     `json:"edges"`
		Damping   float64 `json:"damping"`
		Tolerance float64 `json:"tolerance"`
	}{rng.Uint32(), nodes, edges, []float64{0.85, 0.9, 0.95}[rng.IntN(3)], []float64{1e-7, 1e-8, 1e-9}[rng.IntN(3)]},
		map[string]int64{"nodes": int64(nodes), "edges": int64(edges), "sum_ppm": 1_000_000})
}

func inline(body any, expect map[string]int64) Request {
	b, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("a body of numbers and one string does not marshal: %v", err))
	}
	return Request{Size: len(b), Body: string(b), Expect: expect}
}
