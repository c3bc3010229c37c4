// Package glyph draws the things that the image recognition knows: it learns from
// these drawings, and its pictures are made of them.
package glyph

import "math"

// Side is the side of the square that a thing is in, in pixels.
const Side = 28

// Thing is a kind of thing.
type Thing struct {
	Name string
	// covers reports whether the thing is at a place, in units of half a side
	// from the middle.
	covers func(x, y float64) bool
}

// Things are all known things.
var Things = []Thing{
	{"disc", func(x, y float64) bool { return math.Hypot(x, y) < 0.7 }},
	{"ring", func(x, y float64) bool { r := math.Hypot(x, y); return r > 0.45 && r < 0.8 }},
	{"cross", func(x, y float64) bool { return math.Abs(x) < 0.2 || math.Abs(y) < 0.2 }},
	{"saltire", func(x, y float64) bool { return math.Abs(math.Abs(x)-math.Abs(y)) < 0.25 }},
	{"rows", func(_, y float64) bool { return stripe(y) }},
	{"columns", func(x, _ float64) bool { return stripe(x) }},
	{"checks", func(x, y float64) bool { return stripe(x) != stripe(y) }},
	{"frame", func(x, y float64) bool { return max(math.Abs(x), math.Abs(y)) > 0.5 }},
}

func stripe(x float64) bool { return int(math.Floor((x+1)*2.5))%2 == 0 }

const edge = 2 // empty pixels around a thing

// Covers reports whether the thing is at pixel (x, y) of its square, when it is
// moved by (dx, dy) pixels, -1 to 1 each, from the middle.
func (t Thing) Covers(x, y, dx, dy int) bool {
	x, y = x-dx, y-dy
	if min(x, y) < edge || max(x, y) >= Side-edge {
		return false
	}
	const half = float64(Side-2*edge) / 2
	return t.covers((float64(x-edge)+0.5-half)/half, (float64(y-edge)+0.5-half)/half)
}
