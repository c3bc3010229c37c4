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

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/functions/inputs/inputstest"
	"libra.dev/libra/loadtest/functions/server"
)

func frame(t *testing.T, width, height int, gray uint8) []byte {
	img := image.NewGray(image.Rect(0, 0, width, height))
	for i := range img.Pix {
		img.Pix[i] = gray
	}
	var b bytes.Buffer
	if err := jpeg.Encode(&b, img, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFramesThatShowTheSameAreOne(t *testing.T) {
	var body []byte
	for _, gray := range []uint8{32, 32, 224, 223, 225, 32} {
		body = append(body, frame(t, 64, 48, gray)...)
	}
	did, err := work(context.Background(), body)
	if err != nil {
		t.Fatal(err)
	}
	if r := did.(result); r.Frames != 6 || r.Moving != 3 || r.Hundredths != 60 || r.Width != 64 || r.Height != 48 || r.Layouts != 0xffffffff {
		t.Errorf("it says it did %+v", r)
	}
}

func TestWorkSaysWhatTheVideoShows(t *testing.T) {
	inputstest.Check(t, "videogif", 3, work)
}

func TestPaletteHasItsColours(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		img := image.NewRGBA(image.Rect(0, 0, rapid.IntRange(1, 9).Draw(t, "w"), rapid.IntRange(1, 9).Draw(t, "h")))
		seen := map[[3]uint8]bool{}
		low, high := [3]uint8{255, 255, 255}, [3]uint8{}
		for i := 0; i < len(img.Pix); i += 4 {
			for c := range 3 {
				img.Pix[i+c] = rapid.Byte().Draw(t, "value")
				low[c], high[c] = min(low[c], img.Pix[i+c]&^7), max(high[c], img.Pix[i+c]|7)
			}
			img.Pix[i+3] = 255
			seen[[3]uint8{img.Pix[i] >> 3, img.Pix[i+1] >> 3, img.Pix[i+2] >> 3}] = true
		}
		most := rapid.IntRange(1, 64).Draw(t, "colours")
		palette := paletteOf(tints(img), most)
		if want := min(most, len(seen)); len(palette) != want {
			t.Fatalf("%d colours, want %d", len(palette), want)
		}
		for _, c := range palette {
			c := c.(color.RGBA)
			for i, v := range [3]uint8{c.R, c.G, c.B} {
				if v < low[i] || v > high[i] {
					t.Fatalf("%v is outside the picture's colours, %v to %v", c, low, high)
				}
			}
		}
	})
}

func TestWorkRefuses(t *testing.T) {
	one := frame(t, 32, 32, 100)
	for want, body := range map[string][]byte{
		"no frame": nil,
		"frame 0, at byte 0: it starts with 68 65": []byte("hello"),
		"frame 1":             append(bytes.Clone(one), "tail"...),
		"has no end":          one[:len(one)-2],
		"more than 300":       bytes.Repeat(one, maxFrames+1),
		"frame 0 has 32 x 32": append(bytes.Clone(one), frame(t, 32, 40, 100)...),
		"at least 16":         frame(t, 8, 100, 0),
		"together":            bytes.Repeat(frame(t, 1024, 1024, 0), 49),
	} {
		_, err := work(context.Background(), body)
		if !errors.As(err, &server.BadRequestError{}) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a bad request that says %q", err, want)
		}
	}
}
