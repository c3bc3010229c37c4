package picture

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/jpeg"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestShrinkIsTheMeanOfTheLight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, h := rapid.IntRange(1, 40).Draw(t, "w"), rapid.IntRange(1, 40).Draw(t, "h")
		size := image.Pt(rapid.IntRange(1, w).Draw(t, "to w"), rapid.IntRange(1, h).Draw(t, "to h"))
		left, top := rapid.IntRange(-3, 3).Draw(t, "left"), rapid.IntRange(-3, 3).Draw(t, "top")
		src := image.NewRGBA(image.Rect(left, top, left+w, top+h))
		for i := range src.Pix {
			src.Pix[i] = rapid.Byte().Draw(t, "value")
			if i%4 == 3 {
				src.Pix[i] = 255
			}
		}
		got, err := Shrink(context.Background(), src, size, rapid.IntRange(1, 3).Draw(t, "workers"))
		if err != nil {
			t.Fatal(err)
		}
		for y := range size.Y {
			for x := range size.X {
				want, n := 0.0, 0.0
				for sy := y * h / size.Y; sy < (y+1)*h/size.Y; sy++ {
					for sx := x * w / size.X; sx < (x+1)*w/size.X; sx++ {
						want += math.Pow(float64(src.RGBAAt(left+sx, top+sy).G)/255, 2.2)
						n++
					}
				}
				value := 255 * math.Pow(want/n, 1/2.2)
				// In the dark, a step of the table is more than a value.
				if off := math.Abs(float64(got.RGBAAt(x, y).G) - value); off > 1+160/(value+8) {
					t.Fatalf("pixel %d,%d is %v, want %.1f", x, y, got.RGBAAt(x, y), value)
				}
			}
		}
	})
}

func TestLayoutOfKnownCells(t *testing.T) {
	img := image.NewGray(image.Rect(5, 5, 5+40, 5+40))
	for y := range 40 {
		for x := range 40 {
			img.SetGray(5+x, 5+y, color.Gray{Y: []uint8{32, 96, 160, 224}[(x/10+y/10)%4]})
		}
	}
	var want uint32
	for cell := range 16 {
		want |= uint32((cell%4+cell/4)%4) << (2 * cell)
	}
	if got := Layout(img); got != want {
		t.Errorf("Layout() = %08x, want %08x", got, want)
	}
}

func TestDecodeRefuses(t *testing.T) {
	encoded := func(w, h int) []byte {
		var b bytes.Buffer
		if err := jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, w, h)), nil); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	bounds := Bounds{MinSide: 16, MaxPixels: 64 * 64}
	for want, body := range map[string][]byte{
		"not a JPEG picture": []byte("hello"),
		"15 x 20 pixels":     encoded(15, 20),
		"at most 4096":       encoded(65, 64),
		"decode the JPEG":    encoded(64, 64)[:400],
		"0 bytes are not a":  nil,
	} {
		if _, err := bounds.Decode(body); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
	}
	if _, err := bounds.Decode(encoded(64, 64)); err != nil {
		t.Errorf("within its bounds: %v", err)
	}
}

func TestFit(t *testing.T) {
	for _, c := range []struct{ size, want image.Point }{
		{image.Pt(400, 300), image.Pt(200, 150)},
		{image.Pt(300, 400), image.Pt(150, 200)},
		{image.Pt(100, 50), image.Pt(100, 50)},
		{image.Pt(4000, 3), image.Pt(200, 1)},
	} {
		if got := Fit(c.size, 200); got != c.want {
			t.Errorf("Fit(%v) = %v, want %v", c.size, got, c.want)
		}
	}
}
