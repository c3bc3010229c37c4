// Package inputs makes the inputs of the ten functions of LIBRA's Table 1, and says what a
// function must answer that it did. Nothing is downloaded: an input follows from its function, a
// seed and a number.
package inputs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
)

// Input is the body of a request, and what is known about its answer.
type Input struct {
	Body []byte
	// Cut says that Body is the part of the corpus from Offset on, so that a sender need not have
	// it twice.
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
	// Related says that the demand follows the size of the body; the others' demand follows its
	// content.
	Related bool
	draw    func(rng *rand.Rand, size sizer) Input
	heavy   tail
}

// sizer draws the measure that an input's cost follows most: bytes, pixels across, frames. By
// default it is LogUniform.
type sizer func(rng *rand.Rand, low, high int) int

var corpus = sync.OnceValue(Corpus)

// Functions are the ten, in the paper's order.
var Functions = []Function{
	{"uploader", "UL", true, func(rng *rand.Rand, size sizer) Input { return Cut(rng, corpus(), size(rng, 128<<10, 3<<20)) },
		tail{16 << 10, 300 << 10, 3 << 20, 0.95}},
	{"thumbnailer", "TN", true, photograph, tail{160, 720, 2400, 0.4}},
	{"compression", "CP", true, func(rng *rand.Rand, size sizer) Input { return Cut(rng, corpus(), size(rng, 128<<10, 4<<20)) },
		tail{16 << 10, 200 << 10, 4 << 20, 1.1}},
	{"dnavisualization", "DV", true, sequences, tail{8 << 10, 90 << 10, 2 << 20, 1.1}},
	{"dynamichtml", "DH", true, func(rng *rand.Rand, size sizer) Input { return Order(rng, size(rng, 200, 4000)) },
		tail{50, 380, 4000, 1}},
	{"videogif", "VP", false, video, tail{3, 14, 150, 0.8}},
	{"imagerecognition", "IR", false, still, tail{2, 20, 256, 1}},
	{"pagerank", "GP", false, func(rng *rand.Rand, size sizer) Input { return Ranking(rng, size(rng, 50_000, 3_000_000)) },
		tail{10_000, 300_000, 3_000_000, 1.3}},
	{"mst", "GM", false, forest, tail{20_000, 280_000, 3_000_000, 0.9}},
	{"bfs", "GB", false, search, tail{20_000, 300_000, 3_000_000, 1.1}},
}

// Draw makes an input of a function. The same seed and number always make the same input.
func Draw(function string, seed, n uint64) (Input, error) {
	return drawSized(function, seed, n, func(Function) sizer { return LogUniform })
}

// Heavy makes the n-th of count inputs of a function, most of which are short and few very long:
// the function's CPU time is about log-normal, tens of milliseconds as a rule and seconds at most.
// Each input stands for an equal part of the distribution, so that even a few inputs have its
// tail. scale multiplies the sizes; 1 is the function's own.
func Heavy(function string, seed uint64, n, count int, scale float64) (Input, error) {
	if n < 0 || n >= count || !(scale > 0) {
		return Input{}, fmt.Errorf("input %d of %d at a scale of %v does not exist: inputs count from 0, and the scale must be above 0", n, count, scale)
	}
	return drawSized(function, seed, uint64(n), func(f Function) sizer {
		return func(rng *rand.Rand, _, _ int) int {
			return f.heavy.at((float64(n)+rng.Float64())/float64(count), scale)
		}
	})
}

// Sized makes an input of a function with a given size, in the function's own measure.
func Sized(function string, seed, n uint64, size int) (Input, error) {
	return drawSized(function, seed, n, func(Function) sizer {
		return func(*rand.Rand, int, int) int { return size }
	})
}

func drawSized(function string, seed, n uint64, size func(Function) sizer) (Input, error) {
	i := slices.IndexFunc(Functions, func(f Function) bool { return f.Name == function })
	if i < 0 {
		var names []string
		for _, f := range Functions {
			names = append(names, f.Name)
		}
		return Input{}, fmt.Errorf("function %q has no inputs; these functions have some: %q", function, names)
	}
	stream := fnv.New64a()
	fmt.Fprintf(stream, "%s/%d", function, n)
	return Functions[i].draw(rand.New(rand.NewPCG(seed, stream.Sum64())), size(Functions[i])), nil
}

// longestAnswer is longer than any function's answer.
const longestAnswer = 64 << 10

// Exchange sends a request to a function, and checks that the answer says it did what is expected.
// The status is 0 without an answer.
func Exchange(client *http.Client, request *http.Request, expect map[string]int64) (status int, err error) {
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	said, err := io.ReadAll(io.LimitReader(answer.Body, longestAnswer))
	switch {
	case err != nil:
		return answer.StatusCode, fmt.Errorf("read the answer: %w", err)
	case answer.StatusCode != http.StatusOK:
		return answer.StatusCode, fmt.Errorf("%s: %.200s", answer.Status, said)
	}
	var of struct {
		Did json.RawMessage `json:"did"`
	}
	if err := json.Unmarshal(said, &of); err != nil {
		return answer.StatusCode, fmt.Errorf("the answer is not that of a function: %w: %.200s", err, said)
	}
	if got := Said(of.Did, expect); !maps.Equal(got, expect) {
		return answer.StatusCode, fmt.Errorf("the function says that it did %v, want %v", got, expect)
	}
	return answer.StatusCode, nil
}

// Said returns those values in did, as a function would send it, that expect names.
func Said(did any, expect map[string]int64) map[string]int64 {
	said := map[string]int64{}
	text, err := json.Marshal(did)
	if err != nil {
		return said
	}
	var all map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	// As a float, a large number would be rounded.
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

// LogUniform draws from low to high so that each doubling is equally likely.
func LogUniform(rng *rand.Rand, low, high int) int {
	return int(float64(low) * math.Pow(float64(high)/float64(low), rng.Float64()))
}

// uniform draws from low to high.
func uniform(rng *rand.Rand, low, high int) int { return low + rng.IntN(high-low+1) }
