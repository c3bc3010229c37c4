package inputs

import (
	"bytes"
	"fmt"
	"image"
	"image/jpeg"
	"math"
	"math/rand/v2"

	"libra.dev/libra/loadtest/functions/glyph"
	"libra.dev/libra/loadtest/functions/picture"
)

// scene is what a picture shows: cells as bright as its layout says, under a wave,
// with grain. The brightness is in the middle of the range that the layout tells
// apart, so that a thumbnail still has it.
type scene struct {
	layout uint32
	wave   float64    // how much brighter and darker
	step   [2]float64 // of the wave's turns, for each pixel to the right and down
	phase  float64    // of the wave, in turns
	grain  int        // how much brighter or darker a pixel is at most
	tint   float64
}

var sine = func() (s [256]float64) {
	for i := range s {
		s[i] = math.Sin(2 * math.Pi * float64(i) / float64(len(s)))
	}
	return s
}()

func (s scene) paint(rng *rand.Rand, width, height int) *image.YCbCr {
	img := image.NewYCbCr(image.Rect(0, 0, width, height), image.YCbCrSubsampleRatio420)
	var wave [256]int
	for i, v := range sine {
		wave[i] = int(math.Round(s.wave * v))
	}
	turn := func(x float64) uint32 { return uint32(int64(x * (1 << 32))) }
	right, down, phase := turn(s.step[0]), turn(s.step[1]), turn(s.phase)
	bits, left := uint64(0), 0
	for y := range height {
		line, row := img.Y[y*img.YStride:][:width], ((y+1)*picture.Cells-1)/height
		at := phase + uint32(y)*down
		for column := range picture.Cells {
			bright := 32 + 64*int(s.layout>>(2*(row*picture.Cells+column))&3)
			for x := column * width / picture.Cells; x < (column+1)*width/picture.Cells; x++ {
				if left == 0 {
					bits, left = rng.Uint64(), 8
				}
				grain := int(bits&0xff)*(2*s.grain+1)>>8 - s.grain
				bits, left = bits>>8, left-1
				line[x] = uint8(max(0, min(255, bright+wave[(at+uint32(x)*right)>>24]+grain)))
			}
		}
	}
	for i := range img.Cb {
		x, y := float64(i%img.CStride)/float64(width), float64(i/img.CStride)/float64(height)
		img.Cb[i] = uint8(128 + 20*sine[int(256*(s.tint+x))%256])
		img.Cr[i] = uint8(128 + 20*sine[int(256*(s.tint+y))%256])
	}
	return img
}

func encode(img image.Image, quality int) []byte {
	var body bytes.Buffer
	if err := jpeg.Encode(&body, img, &jpeg.Options{Quality: quality}); err != nil {
		panic(fmt.Sprintf("a picture of %v does not encode: %v", img.Bounds(), err))
	}
	return body.Bytes()
}

// photograph makes pictures for the thumbnailer: of many sizes, with about as much
// detail.
func photograph(rng *rand.Rand, size sizer) Input {
	width := size(rng, 320, 3200)
	height := width * uniform(rng, 60, 80) / 100
	period := float64(uniform(rng, 12, 40))
	s := scene{
		layout: rng.Uint32(), wave: 8, step: [2]float64{1 / period, 0.5 / period},
		phase: rng.Float64(), grain: uniform(rng, 5, 8), tint: rng.Float64(),
	}
	return Input{Body: encode(s.paint(rng, width, height), uniform(rng, 80, 90)), Expect: map[string]int64{
		"width": int64(width), "height": int64(height), "thumbnails": 3, "layout": int64(s.layout),
	}}
}

// video makes a clip that stands still in some of its frames. Its size and
// compression vary, so that its bytes say little about the work.
func video(rng *rand.Rand, size sizer) Input {
	width := []int{160, 240, 320, 480}[rng.IntN(4)]
	height := width * 3 / 4
	frames, quality, moves := size(rng, 12, 80), uniform(rng, 15, 95), float64(LogUniform(rng, 4, 100))/100
	step := 12 / float64(width)
	s := scene{wave: 16, step: [2]float64{step, step / 3}, grain: uniform(rng, 0, 14), layout: rng.Uint32(), tint: rng.Float64()}
	grain := rng.Uint64()
	moving, layouts := 1, int64(s.layout)
	var body []byte
	for frame := range frames {
		if frame > 0 && rng.Float64() < moves {
			s.phase += 0.25 + 0.5*rng.Float64()
			if rng.IntN(8) == 0 {
				s.layout = rng.Uint32()
			}
			moving, layouts = moving+1, layouts+int64(s.layout)
		}
		// All frames have the same grain, so that a frame that stands still is the
		// same.
		body = append(body, encode(s.paint(rand.New(rand.NewPCG(grain, 0)), width, height), quality)...)
	}
	shown := picture.Fit(image.Pt(width, height), 200)
	return Input{Body: body, Expect: map[string]int64{
		"frames": int64(frames), "moving": int64(moving), "duration_cs": int64(10 * frames), "layouts": layouts,
		"width": int64(shown.X), "height": int64(shown.Y),
	}}
}

// still makes a picture with few or many things on it, and more or less grain. All
// have the same size in pixels, but not in bytes.
func still(rng *rand.Rand, size sizer) Input {
	const columns = 16
	img := image.NewGray(image.Rect(0, 0, columns*glyph.Side, columns*glyph.Side))
	ground, grain := float64(uniform(rng, 60, 110)), 10*math.Pow(rng.Float64(), 2)
	for i := range img.Pix {
		img.Pix[i] = uint8(max(0, ground+grain*rng.NormFloat64()))
	}
	expect := map[string]int64{"squares": columns * columns}
	for _, thing := range glyph.Things {
		expect[thing.Name] = 0
	}
	for _, square := range rng.Perm(columns * columns)[:size(rng, 4, columns*columns)] {
		thing := glyph.Things[rng.IntN(len(glyph.Things))]
		dx, dy, contrast := uniform(rng, -1, 1), uniform(rng, -1, 1), uint8(uniform(rng, 60, 100))
		for y := range glyph.Side {
			for x := range glyph.Side {
				if thing.Covers(x, y, dx, dy) {
					img.Pix[img.PixOffset(square%columns*glyph.Side+x, square/columns*glyph.Side+y)] += contrast
				}
			}
		}
		expect["things"]++
		expect[thing.Name]++
	}
	return Input{Body: encode(img, uniform(rng, 60, 95)), Expect: expect}
}
