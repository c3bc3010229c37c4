// Command thumbnailer makes thumbnails of the JPEG picture in the body (TN in
// LIBRA's Table 1), in three sizes, as a web site wants them. A large picture
// keeps every core busy that its container may use.
package main

import (
	"bytes"
	"context"
	"hash/crc32"
	"image"
	"image/jpeg"
	"net"

	"libra.dev/libra/loadtest/functions/parallel"
	"libra.dev/libra/loadtest/functions/picture"
	"libra.dev/libra/loadtest/functions/server"
)

const (
	quality = 85
	// A worker is worth starting for this much of a picture.
	pixelsPerWorker = 512 << 10
)

var (
	// sides are the sides of the squares that the thumbnails fit, the smallest
	// last.
	sides  = []int{960, 480, 160}
	bounds = picture.Bounds{MinSide: 16, MaxPixels: 8 << 20}
)

type result struct {
	Width      int    `json:"width"`
	Height     int    `json:"height"`
	Thumbnails int    `json:"thumbnails"`
	Bytes      int    `json:"thumbnail_bytes"`
	CRC32      uint32 `json:"thumbnail_crc32"`
	// Layout is the smallest thumbnail's. It is the picture's, or the thumbnail
	// shows another picture.
	Layout uint32 `json:"layout"`
}

func work(ctx context.Context, body []byte) (any, error) {
	img, err := bounds.Decode(body)
	if err != nil {
		return nil, server.BadRequestError{Err: err}
	}
	size := img.Bounds().Size()
	did := result{Width: size.X, Height: size.Y, Thumbnails: len(sides)}
	workers := parallel.Workers(size.X*size.Y, pixelsPerWorker)
	thumbnails := make([]*image.RGBA, len(sides))
	for i, side := range sides {
		if thumbnails[i], err = picture.Shrink(ctx, img, picture.Fit(size, side), workers); err != nil {
			return nil, err
		}
	}
	encoded := make([]bytes.Buffer, len(sides))
	err = parallel.Do(ctx, workers, len(sides), func(i int) error {
		return jpeg.Encode(&encoded[i], thumbnails[i], &jpeg.Options{Quality: quality})
	})
	if err != nil {
		return nil, err
	}
	for i := range encoded {
		did.Bytes += encoded[i].Len()
		did.CRC32 = crc32.Update(did.CRC32, crc32.IEEETable, encoded[i].Bytes())
	}
	shown, err := jpeg.Decode(&encoded[len(encoded)-1])
	if err != nil {
		return nil, err
	}
	did.Layout = picture.Layout(shown)
	return did, nil
}

func main() { server.Main(server.Handler(work), net.ListenConfig{}) }
