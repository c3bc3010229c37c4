package duplicator

import (
	"cmp"
	"io"
	"math"
	"slices"
)

const (
	// A copy of a body has 1/maxFactor to maxFactor times the length of the body, but always
	// minSize to maxSize bytes.
	maxFactor = 16
	minSize   = 64
	maxSize   = 8 << 20

	// maxReplays bounds the requests to one copy of a revision.
	maxReplays = 24
)

// replay is an input to be sent with its body tiled or cut to size bytes.
type replay struct {
	input *input
	size  int64
}

// plan spreads maxReplays over the inputs, and orders the replays from the smallest to
// the largest.
func plan(inputs []input) []replay {
	var replays []replay
	for i := range inputs {
		for _, size := range sizes(int64(len(inputs[i].body)), maxReplays/len(inputs)) {
			replays = append(replays, replay{input: &inputs[i], size: size})
		}
	}
	slices.SortStableFunc(replays, func(a, b replay) int { return cmp.Compare(a.size, b.size) })
	return replays
}

// sizes returns at most n sizes, evenly spaced on a logarithmic scale, for copies of a
// body of the given length.
func sizes(length int64, n int) []int64 {
	least := min(max(length/maxFactor, minSize), maxSize)
	most := min(max(length*maxFactor, minSize), maxSize)
	if n == 1 || least == most {
		return []int64{most}
	}
	spaced := make([]int64, n)
	ratio := float64(most) / float64(least)
	for i := range spaced {
		size := float64(least) * math.Pow(ratio, float64(i)/float64(n-1))
		spaced[i] = min(max(int64(math.Round(size)), least), most)
	}
	return slices.Compact(spaced)
}

// tiled reads size bytes: the body over and over, or as much of it as fits.
type tiled struct {
	body []byte
	at   int64
	size int64
}

func (t *tiled) Read(p []byte) (int, error) {
	if t.at >= t.size {
		return 0, io.EOF
	}
	if rest := t.size - t.at; int64(len(p)) > rest {
		p = p[:rest]
	}
	n := copy(p, t.body[t.at%int64(len(t.body)):])
	t.at += int64(n)
	return n, nil
}
