package main

import (
	"math"
	"math/rand/v2"

	"libra.dev/libra/loadtest/functions/glyph"
)

// network is a small convolutional network. Its convolutions are random, which
// find features well enough for things as plain as these. It knows each kind of
// thing by the mean of the features of some examples.
type network struct {
	layers []convolution
	known  [][]float32 // for each kind of thing, at length 1
}

// The weights are the same in every process.
const weightSeed = 7

func newNetwork() *network {
	rng := rand.New(rand.NewPCG(weightSeed, 0))
	n := &network{layers: []convolution{
		newConvolution(rng, 1, 16, true),
		newConvolution(rng, 16, 32, true),
		newConvolution(rng, 32, 64, false),
	}}
	s := n.newScratch()
	for _, thing := range glyph.Things {
		var sum []float32
		for dx := -1; dx <= 1; dx++ {
			for dy := -1; dy <= 1; dy++ {
				features := n.features(example(thing, dx, dy), s)
				if sum == nil {
					sum = make([]float32, len(features))
				}
				for i, f := range features {
					sum[i] += f
				}
			}
		}
		normalize(sum)
		n.known = append(n.known, sum)
	}
	return n
}

// example is a drawing of a thing.
func example(thing glyph.Thing, dx, dy int) []float32 {
	square := make([]float32, glyph.Side*glyph.Side)
	for i := range square {
		if thing.Covers(i%glyph.Side, i/glyph.Side, dx, dy) {
			square[i] = 1
		}
	}
	standardize(square)
	return square
}

// recognize returns the index of the thing that a square shows.
func (n *network) recognize(square []float32, s *scratch) int {
	standardize(square)
	features := n.features(square, s)
	best, closest := 0, float32(-1)
	for kind, known := range n.known {
		dot := float32(0)
		for i, f := range features {
			dot += f * known[i]
		}
		if dot > closest {
			best, closest = kind, dot
		}
	}
	return best
}

// features returns a square's features, at length 1. They are valid until s is
// used again.
func (n *network) features(square []float32, s *scratch) []float32 {
	at, side := square, glyph.Side
	for i, l := range n.layers {
		l.apply(at, side, s.sums[i])
		at = s.sums[i]
		if l.pool {
			pool(at, side, s.pooled[i])
			at, side = s.pooled[i], side/2
		}
	}
	normalize(at)
	return at
}

// scratch is the memory that one worker needs.
type scratch struct{ sums, pooled [][]float32 }

func (n *network) newScratch() *scratch {
	s := &scratch{}
	side := glyph.Side
	for _, l := range n.layers {
		s.sums = append(s.sums, make([]float32, l.out*side*side))
		s.pooled = append(s.pooled, make([]float32, l.out*side*side/4))
		if l.pool {
			side /= 2
		}
	}
	return s
}

// convolution is a 3 x 3 convolution, with negative results cut off.
type convolution struct {
	in, out int
	weights []float32 // by output, input, row and column
	pool    bool      // followed by the largest of each 2 x 2
}

func newConvolution(rng *rand.Rand, in, out int, pool bool) convolution {
	c := convolution{in: in, out: out, weights: make([]float32, out*in*9), pool: pool}
	for i := range c.weights {
		c.weights[i] = float32(rng.NormFloat64() * math.Sqrt(2/float64(9*in)))
	}
	return c
}

func (c convolution) apply(from []float32, side int, to []float32) {
	area := side * side
	for o := range c.out {
		sums := to[o*area : (o+1)*area]
		clear(sums)
		for i := range c.in {
			w, channel := c.weights[(o*c.in+i)*9:][:9], from[i*area:(i+1)*area]
			for k, weight := range w {
				addShifted(sums, channel, side, k%3-1, k/3-1, weight)
			}
		}
		for i, sum := range sums {
			sums[i] = max(sum, 0)
		}
	}
}

// addShifted adds weight times a channel, moved by (dx, dy); outside it, values
// are 0.
func addShifted(sums, channel []float32, side, dx, dy int, weight float32) {
	left, right := max(0, -dx), min(side, side-dx)
	for y := max(0, -dy); y < min(side, side-dy); y++ {
		to := sums[y*side+left : y*side+right]
		from := channel[(y+dy)*side+left+dx:][:len(to)]
		for x, v := range from {
			to[x] += weight * v
		}
	}
}

// pool halves the side of each channel by taking the largest of each 2 x 2.
func pool(from []float32, side int, to []float32) {
	half := side / 2
	for i := range to[:len(from)/4] {
		// The rows of all channels follow each other.
		top := from[i/half*2*side+i%half*2:]
		to[i] = max(top[0], top[1], top[side], top[side+1])
	}
}

// standardize makes the mean 0 and the deviation 1, so that neither a thing's
// brightness nor its background matters.
func standardize(values []float32) {
	mean, deviation := moments(values)
	for i, v := range values {
		values[i] = float32((float64(v) - mean) / max(deviation, 1e-6))
	}
}

func moments(values []float32) (mean, deviation float64) {
	var sum, squares float64
	for _, v := range values {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	mean = sum / float64(len(values))
	return mean, math.Sqrt(max(0, squares/float64(len(values))-mean*mean))
}

func normalize(values []float32) {
	var squares float64
	for _, v := range values {
		squares += float64(v) * float64(v)
	}
	length := float32(math.Sqrt(max(squares, 1e-12)))
	for i := range values {
		values[i] /= length
	}
}
