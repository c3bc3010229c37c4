// Command videogif makes an animated GIF of the Motion JPEG video in the body,
// frame by frame (VP in LIBRA's Table 1). A frame that shows the same as the one
// before only makes that one last longer; any other gets a palette of its own and
// is dithered. So the cost follows the size of the frames and how many of them
// move, and not how many bytes they take.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/gif"
	"net"

	"libra.dev/libra/loadtest/functions/parallel"
	"libra.dev/libra/loadtest/functions/picture"
	"libra.dev/libra/loadtest/functions/server"
)

const (
	maxFrames = 300
	// All frames together, as they are in the body.
	maxPixels = 48 << 20

	side             = 200 // of the square that the GIF fits
	hundredthsAFrame = 10
	colors           = 64
	// Two frames show the same if their values differ by less on average.
	sameWithin = 8

	// A worker is worth starting for this much of a video.
	pixelsPerWorker = 512 << 10
)

var bounds = picture.Bounds{MinSide: 16, MaxPixels: 1 << 20}

type result struct {
	Frames     int    `json:"frames"`
	Moving     int    `json:"moving"` // frames of the GIF
	Width      int    `json:"width"`  // of the GIF
	Height     int    `json:"height"`
	Hundredths int    `json:"duration_cs"`
	Bytes      int    `json:"gif_bytes"`
	CRC32      uint32 `json:"gif_crc32"`
	// Layouts is the sum of the layouts of the GIF's frames, as it shows them.
	Layouts int64 `json:"layouts"`
}

func work(ctx context.Context, body []byte) (any, error) {
	frames, err := split(body)
	if err != nil {
		return nil, server.BadRequestError{Err: fmt.Errorf("the body is not a Motion JPEG video: %w", err)}
	}
	// The first frame's size counts for all; decode checks that they agree.
	first, err := bounds.Decode(frames[0])
	if err != nil {
		return nil, server.BadRequestError{Err: fmt.Errorf("frame 0: %w", err)}
	}
	size := first.Bounds().Size()
	pixels := size.X * size.Y * len(frames)
	if pixels > maxPixels {
		return nil, server.BadRequestError{Err: fmt.Errorf("the video has %d frames of %d x %d pixels; all frames together must have at most %d pixels",
			len(frames), size.X, size.Y, maxPixels)}
	}
	workers := parallel.Workers(pixels, pixelsPerWorker)
	small, err := decode(ctx, frames, size, workers)
	if err != nil {
		return nil, err
	}
	kept, delays := moving(small)
	animation := &gif.GIF{Image: make([]*image.Paletted, len(kept)), Delay: delays}
	layouts := make([]uint32, len(kept))
	err = parallel.Do(ctx, workers, len(kept), func(i int) error {
		animation.Image[i] = dither(kept[i], colors)
		layouts[i] = picture.Layout(animation.Image[i])
		return nil
	})
	if err != nil {
		return nil, err
	}
	var encoded bytes.Buffer
	if err := gif.EncodeAll(&encoded, animation); err != nil {
		return nil, fmt.Errorf("encode a GIF of %d frames: %w", len(kept), err)
	}
	did := result{
		Frames: len(frames), Moving: len(kept),
		Width: kept[0].Rect.Dx(), Height: kept[0].Rect.Dy(),
		Bytes: encoded.Len(), CRC32: crc32.ChecksumIEEE(encoded.Bytes()),
	}
	for i, l := range layouts {
		did.Hundredths += delays[i]
		did.Layouts += int64(l)
	}
	return did, nil
}

// split cuts the body into its frames: JPEG pictures, one after the other.
func split(body []byte) ([][]byte, error) {
	var frames [][]byte
	for start := 0; start < len(body); {
		n, err := frameLength(body[start:])
		if err != nil {
			return nil, fmt.Errorf("frame %d, at byte %d: %w", len(frames), start, err)
		}
		if frames = append(frames, body[start:start+n]); len(frames) > maxFrames {
			return nil, fmt.Errorf("it has more than %d frames", maxFrames)
		}
		start += n
	}
	if len(frames) == 0 {
		return nil, errors.New("it has no frame")
	}
	return frames, nil
}

// frameLength finds the end of the JPEG picture that b starts with.
func frameLength(b []byte) (int, error) {
	const startOfImage, endOfImage, startOfScan = 0xd8, 0xd9, 0xda
	if len(b) < 2 || b[0] != 0xff || b[1] != startOfImage {
		return 0, fmt.Errorf("it starts with % x; a JPEG picture starts with ff d8", b[:min(2, len(b))])
	}
	for at := 2; at+1 < len(b); {
		if b[at] != 0xff {
			return 0, fmt.Errorf("byte %d is %02x where a marker should be", at, b[at])
		}
		marker := b[at+1]
		if marker == endOfImage {
			return at + 2, nil
		}
		if at+3 >= len(b) {
			break
		}
		// A segment's length includes the length field.
		at += 2 + int(b[at+2])<<8 + int(b[at+3])
		if marker != startOfScan {
			continue
		}
		// The scan's data ends at the next marker. ff before a zero, or before a
		// restart, is none.
		for at+1 < len(b) && (b[at] != 0xff || b[at+1] == 0 || b[at+1]&0xf8 == 0xd0) {
			at++
		}
	}
	return 0, errors.New("it has no end")
}

// decode returns the frames, which must have the size, shrunk to the GIF's.
func decode(ctx context.Context, frames [][]byte, size image.Point, workers int) ([]*image.RGBA, error) {
	small := make([]*image.RGBA, len(frames))
	err := parallel.Do(ctx, workers, len(frames), func(i int) error {
		img, err := bounds.Decode(frames[i])
		if err == nil && img.Bounds().Size() != size {
			err = fmt.Errorf("it has %d x %d pixels, but frame 0 has %d x %d; all frames must have the same size", img.Bounds().Dx(), img.Bounds().Dy(), size.X, size.Y)
		}
		if err != nil {
			return server.BadRequestError{Err: fmt.Errorf("frame %d: %w", i, err)}
		}
		small[i], err = picture.Shrink(ctx, img, picture.Fit(size, side), 1)
		return err
	})
	return small, err
}

// moving returns the frames that differ from the one shown before them, and for
// how long each is shown.
func moving(frames []*image.RGBA) (kept []*image.RGBA, delays []int) {
	for _, f := range frames {
		if last := len(kept) - 1; last >= 0 && difference(kept[last], f) < sameWithin {
			delays[last] += hundredthsAFrame
			continue
		}
		kept, delays = append(kept, f), append(delays, hundredthsAFrame)
	}
	return kept, delays
}

// difference returns the mean difference of two pictures' values.
func difference(a, b *image.RGBA) int {
	sum := 0
	for i, v := range a.Pix {
		sum += max(int(v)-int(b.Pix[i]), int(b.Pix[i])-int(v))
	}
	// One value in four is the opacity.
	return sum / max(1, len(a.Pix)*3/4)
}

func main() { server.Main(server.Handler(work), net.ListenConfig{}) }
