// Package inputs makes what the ten functions of LIBRA's Table 1 work on, and says
// what a function must answer that it did. Nothing is downloaded: an input follows
// from its function, a seed and a number.
package inputs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
)

// Input is the body of a request, and what is known about the answer to it.
type Input struct {
	Body []byte
	// Cut says that Body is the corpus from Offset on: what sends it need not
	// have it twice.
	Cut    bool
	Offset int
	// Expect is what the answer must say it did, among other things.
	Expect map[string]int64
}

// Function is one of the ten.
type Function struct {
	Name string
	// Title is the function's abbreviation in the paper.
	Title string
	// Related says that the demand follows the size of the body; that of the
	// others follows what is in it.
	Related bool
	draw    func(rng *rand.Rand) Input
}

var corpus = sync.OnceValue(Corpus)

// Functions are the ten, in the paper's order.
var Functions = []Function{
	{"uploader", "UL", true, func(rng *rand.Rand) Input { return Cut(rng, corpus(), 128<<10, 3<<20) }},
	{"thumbnailer", "TN", true, photograph},
	{"compression", "CP", true, func(rng *rand.Rand) Input { return Cut(rng, corpus(), 128<<10, 4<<20) }},
	{"dnavisualization", "DV", true, sequences},
	{"dynamichtml", "DH", true, func(rng *rand.Rand) Input { return Order(rng, 200, 4000) }},
	{"videogif", "VP", false, video},
	{"imagerecognition", "IR", false, still},
	{"pagerank", "GP", false, func(rng *rand.Rand) Input { return Ranking(rng, 50_000, 3_000_000) }},
	{"mst", "GM", false, forest},
	{"bfs", "GB", false, search},
}

// Draw makes an input of a function. The same seed and number always make the same.
func Draw(function string, seed, n uint64) (Input, error) {
	i := slices.IndexFunc(Functions, func(f Function) bool { return f.Name == function })
	if i < 0 {
		var names []string
		for _, f := range Functions {
			names = append(names, f.Name)
		}
		return Input{}, fmt.Errorf("no inputs are known for function %q; there are some for %q", function, names)
	}
	stream := fnv.New64a()
	fmt.Fprintf(stream, "%s/%d", function, n)
	return Functions[i].draw(rand.New(rand.NewPCG(seed, stream.Sum64()))), nil
}

// Said is what did, as a function would send it, says of what is expected.
func Said(did any, expect map[string]int64) map[string]int64 {
	said := map[string]int64{}
	text, err := json.Marshal(did)
	if err != nil {
		return said
	}
	var all map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	// As a float, a large one would be rounded.
	decoder.UseNumber()
	if decoder.Decode(&all) != nil {
		return said
	}
	for key := range expect {
		if number, ok := all[key].(json.Number); ok {
			if n, err := number.Int64(); err == nil {
				said[key] = n
			}
		}
	}
	return said
}

// logUniform draws from low to high so that each doubling is as likely.
func logUniform(rng *rand.Rand, low, high int) int {
	return int(float64(low) * math.Pow(float64(high)/float64(low), rng.Float64()))
}

// uniform draws from low to high.
func uniform(rng *rand.Rand, low, high int) int { return low + rng.IntN(high-low+1) }
