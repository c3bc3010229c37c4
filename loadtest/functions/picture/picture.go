// Package picture is what the functions on pictures share: a bounded way to
// decode a JPEG, a way to shrink it, and the layout by which a picture is
// recognised.
package picture

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/draw"
	"image/jpeg"
	"math"

	"libra.dev/libra/loadtest/functions/parallel"
)

// Cells is the number of cells of a picture's layout in each direction.
const Cells = 4

// Bounds are the limits of the pictures that a function accepts.
type Bounds struct {
	MinSide, MaxPixels int
}

// Decode decodes a JPEG within the bounds, which it checks before it spends
// memory on the pixels. Its errors are about the body.
func (b Bounds) Decode(body []byte) (image.Image, error) {
	config, err := jpeg.DecodeConfig(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%d bytes are not a JPEG picture: %w", len(body), err)
	}
	if min(config.Width, config.Height) < b.MinSide || config.Width*config.Height > b.MaxPixels {
		return nil, fmt.Errorf("the picture has %d x %d pixels; each side must have at least %d pixels, and the picture at most %d",
			config.Width, config.Height, b.MinSide, b.MaxPixels)
	}
	img, err := jpeg.Decode(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("decode the JPEG picture of %d x %d pixels: %w", config.Width, config.Height, err)
	}
	return img, nil
}

// Fit returns the size of a picture in a square of side pixels. It never
// enlarges one.
func Fit(size image.Point, side int) image.Point {
	longest := max(size.X, size.Y)
	if longest <= side {
		return size
	}
	return image.Pt(max(1, size.X*side/longest), max(1, size.Y*side/longest))
}

// Means are taken of light, which adds up, and not of sRGB values, which do not.
var (
	lightOf [256]uint32
	valueOf [4096]uint8
)

func init() {
	for v := range lightOf {
		lightOf[v] = uint32(math.Round(65535 * math.Pow(float64(v)/255, 2.2)))
	}
	for l := range valueOf {
		valueOf[l] = uint8(math.Round(255 * math.Pow((float64(l)+0.5)/float64(len(valueOf)), 1/2.2)))
	}
}

// Shrink makes a picture of size, which must be no larger than src. Each pixel
// is the mean of those that it covers.
func Shrink(ctx context.Context, src image.Image, size image.Point, workers int) (*image.RGBA, error) {
	dst := image.NewRGBA(image.Rectangle{Max: size})
	// More bands than workers, so that the last to end has little left.
	bands := min(size.Y, 8*workers)
	err := parallel.Do(ctx, workers, bands, func(band int) error {
		from, to := parallel.Range(band, bands, size.Y)
		shrinkRows(dst, src, from, to)
		return nil
	})
	return dst, err
}

func shrinkRows(dst *image.RGBA, src image.Image, from, to int) {
	size, whole := dst.Rect.Max, src.Bounds()
	line := image.NewRGBA(image.Rect(0, 0, whole.Dx(), 1))
	sums := make([][3]uint64, size.X)
	for y := from; y < to; y++ {
		clear(sums)
		top, bottom := parallel.Range(y, size.Y, whole.Dy())
		for sy := top; sy < bottom; sy++ {
			draw.Draw(line, line.Rect, src, whole.Min.Add(image.Pt(0, sy)), draw.Src)
			for x := range sums {
				left, right := parallel.Range(x, size.X, whole.Dx())
				var r, g, b uint64
				for p := line.Pix[4*left : 4*right]; len(p) >= 4; p = p[4:] {
					r, g, b = r+uint64(lightOf[p[0]]), g+uint64(lightOf[p[1]]), b+uint64(lightOf[p[2]])
				}
				sums[x] = [3]uint64{sums[x][0] + r, sums[x][1] + g, sums[x][2] + b}
			}
		}
		for x, sum := range sums {
			left, right := parallel.Range(x, size.X, whole.Dx())
			area := uint64((right - left) * (bottom - top))
			p := dst.Pix[dst.PixOffset(x, y):][:4]
			for c := range sum {
				p[c] = valueOf[sum[c]/area>>4]
			}
			p[3] = 255
		}
	}
}

// Layout tells pictures apart by how bright each of Cells x Cells cells is, in
// two bits, the first cell's lowest. It withstands the small changes of a lossy
// format.
func Layout(img image.Image) uint32 {
	var layout uint32
	whole := img.Bounds()
	for row := range Cells {
		for column := range Cells {
			left, right := parallel.Range(column, Cells, whole.Dx())
			top, bottom := parallel.Range(row, Cells, whole.Dy())
			sum := 0
			for y := top; y < bottom; y++ {
				for x := left; x < right; x++ {
					r, g, b, _ := img.At(whole.Min.X+x, whole.Min.Y+y).RGBA()
					sum += int(299*(r>>8)+587*(g>>8)+114*(b>>8)) / 1000
				}
			}
			mean := sum / max(1, (right-left)*(bottom-top))
			layout |= uint32(mean>>6) << (2 * (row*Cells + column))
		}
	}
	return layout
}
