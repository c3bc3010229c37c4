package main

import (
	"cmp"
	"image"
	"image/color"
	"image/draw"
	"slices"
)

// tint is a colour of the coarse cube that a palette is made from, and how many
// pixels have about that colour.
type tint struct {
	value [3]uint8
	n     int
}

// dither draws a picture with a palette of its own.
func dither(img *image.RGBA, colors int) *image.Paletted {
	paletted := image.NewPaletted(img.Rect, paletteOf(tints(img), colors))
	draw.FloydSteinberg.Draw(paletted, img.Rect, img, img.Rect.Min)
	return paletted
}

// tints counts the colours with five bits for each of red, green and blue.
func tints(img *image.RGBA) []tint {
	var counts [1 << 15]int32
	for p := img.Pix; len(p) >= 4; p = p[4:] {
		counts[int(p[0])>>3<<10|int(p[1])>>3<<5|int(p[2])>>3]++
	}
	var all []tint
	for i, n := range counts {
		if n > 0 {
			all = append(all, tint{[3]uint8{uint8(i>>10<<3 + 4), uint8(i>>5<<3 + 4), uint8(i<<3 + 4)}, int(n)})
		}
	}
	return all
}

// paletteOf splits the colours at the median of the box with the most pixels
// times width, until there are enough boxes, and returns the mean of each.
func paletteOf(all []tint, colors int) color.Palette {
	boxes := []box{newBox(all)}
	for len(boxes) < colors {
		widest := 0
		for i, b := range boxes {
			if b.weight() > boxes[widest].weight() {
				widest = i
			}
		}
		if boxes[widest].weight() == 0 {
			break
		}
		low, high := boxes[widest].cut()
		boxes[widest] = low
		boxes = append(boxes, high)
	}
	palette := make(color.Palette, len(boxes))
	for i, b := range boxes {
		palette[i] = b.mean()
	}
	return palette
}

// box is a box of colours.
type box struct {
	tints []tint
	n     int
	axis  int // on which it is widest
	width int // on that axis
}

func newBox(tints []tint) box {
	b := box{tints: tints}
	for _, t := range tints {
		b.n += t.n
	}
	for axis := range 3 {
		low, high := 255, 0
		for _, t := range tints {
			low, high = min(low, int(t.value[axis])), max(high, int(t.value[axis]))
		}
		if high-low > b.width {
			b.axis, b.width = axis, high-low
		}
	}
	return b
}

func (b box) weight() int { return b.n * b.width }

// cut splits a box of some width into two that both have colours.
func (b box) cut() (low, high box) {
	slices.SortFunc(b.tints, func(s, t tint) int { return cmp.Compare(s.value[b.axis], t.value[b.axis]) })
	half, seen := 1, b.tints[0].n
	for half < len(b.tints)-1 && seen < b.n/2 {
		seen += b.tints[half].n
		half++
	}
	return newBox(b.tints[:half]), newBox(b.tints[half:])
}

func (b box) mean() color.RGBA {
	var sums [3]int
	for _, t := range b.tints {
		for c, v := range t.value {
			sums[c] += int(v) * t.n
		}
	}
	return color.RGBA{uint8(sums[0] / b.n), uint8(sums[1] / b.n), uint8(sums[2] / b.n), 255}
}
