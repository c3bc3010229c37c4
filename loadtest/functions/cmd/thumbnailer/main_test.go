package main

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"image/jpeg"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/functions/inputs/inputstest"
	"libra.dev/libra/loadtest/functions/server"
)

func jpegOf(t *testing.T, width, height int) []byte {
	img := image.NewGray(image.Rect(0, 0, width, height))
	for i := range img.Pix {
		img.Pix[i] = 100
	}
	img.SetGray(0, 0, color.Gray{Y: 200})
	var b bytes.Buffer
	if err := jpeg.Encode(&b, img, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestWorkSaysWhatThePictureShows(t *testing.T) {
	inputstest.Check(t, "thumbnailer", 3, work)
}

func TestWorkTakesPicturesSmallerThanItsThumbnails(t *testing.T) {
	did, err := work(context.Background(), jpegOf(t, 16, 300))
	if err != nil {
		t.Fatal(err)
	}
	if r := did.(result); r.Width != 16 || r.Height != 300 || r.Thumbnails != 3 || r.Layout != 0x55555555 {
		t.Errorf("it says it did %+v", r)
	}
}

func TestWorkRefuses(t *testing.T) {
	for want, body := range map[string][]byte{
		"not a JPEG picture": []byte("GIF89a"),
		"4096 x 4096":        jpegOf(t, 4096, 4096),
		"8 x 100":            jpegOf(t, 8, 100),
	} {
		_, err := work(context.Background(), body)
		if !errors.As(err, &server.BadRequestError{}) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a bad request that says %q", err, want)
		}
	}
}

func TestWorkEndsWithItsRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := work(ctx, jpegOf(t, 100, 100)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v for a client that went away", err)
	}
}
