// Command imagerecognition counts the things in the JPEG picture in the body (IR in
// LIBRA's Table 1). It looks for squares with something in them and runs a
// convolutional network on each, so that the cost follows how much there is to see.
package main

import (
	"context"
	"image"
	"image/draw"
	"net"

	"libra.dev/libra/loadtest/functions/glyph"
	"libra.dev/libra/loadtest/functions/parallel"
	"libra.dev/libra/loadtest/functions/picture"
	"libra.dev/libra/loadtest/functions/server"
)

const (
	// A square has something in it if its values deviate by more.
	busyDeviation = 20
	// A worker is worth starting for this many squares.
	squaresPerWorker = 8
)

var bounds = picture.Bounds{MinSide: glyph.Side, MaxPixels: 1 << 20}

// result counts the squares, those with something in them, and each thing by its
// name.
type result map[string]int

func (n *network) work(ctx context.Context, body []byte) (any, error) {
	img, err := bounds.Decode(body)
	if err != nil {
		return nil, server.BadRequestError{Err: err}
	}
	gray := grayOf(img)
	columns, rows := gray.Rect.Dx()/glyph.Side, gray.Rect.Dy()/glyph.Side
	var busy [][]float32
	for i := range columns * rows {
		square := squareOf(gray, i%columns, i/columns)
		if _, deviation := moments(square); deviation > busyDeviation {
			busy = append(busy, square)
		}
	}
	workers := parallel.Workers(len(busy), squaresPerWorker)
	shown := make([]int, len(busy))
	// One part for each worker, because each needs its own scratch.
	err = parallel.Do(ctx, workers, workers, func(w int) error {
		s := n.newScratch()
		from, to := parallel.Range(w, workers, len(busy))
		for i := from; i < to; i++ {
			if err := ctx.Err(); err != nil {
				return err
			}
			shown[i] = n.recognize(busy[i], s)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	did := result{"squares": columns * rows, "things": len(busy)}
	for _, thing := range glyph.Things {
		did[thing.Name] = 0
	}
	for _, kind := range shown {
		did[glyph.Things[kind].Name]++
	}
	return did, nil
}

func grayOf(img image.Image) *image.Gray {
	gray := image.NewGray(image.Rectangle{Max: img.Bounds().Size()})
	switch img := img.(type) {
	case *image.YCbCr:
		for y := range gray.Rect.Max.Y {
			copy(gray.Pix[y*gray.Stride:][:gray.Rect.Max.X], img.Y[y*img.YStride:])
		}
	default:
		draw.Draw(gray, gray.Rect, img, img.Bounds().Min, draw.Src)
	}
	return gray
}

func squareOf(gray *image.Gray, column, row int) []float32 {
	square := make([]float32, 0, glyph.Side*glyph.Side)
	for y := range glyph.Side {
		line := gray.Pix[(row*glyph.Side+y)*gray.Stride+column*glyph.Side:]
		for _, v := range line[:glyph.Side] {
			square = append(square, float32(v))
		}
	}
	return square
}

func main() { server.Main(server.Handler(newNetwork().work), net.ListenConfig{}) }
