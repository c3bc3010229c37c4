// Package plot draws the plots of the demo's and the evaluation's pages, as SVG elements.
package plot

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	width  = 16 * vg.Centimeter
	height = 8 * vg.Centimeter
)

// Colours that people who do not see every colour can tell apart.
var (
	Grey   = color.RGBA{R: 0x99, G: 0x99, B: 0x99, A: 0xff}
	Black  = color.RGBA{A: 0xff}
	Orange = color.RGBA{R: 0xd5, G: 0x5e, A: 0xff}
	Blue   = color.RGBA{G: 0x72, B: 0xb2, A: 0xff}
	Green  = color.RGBA{G: 0x9e, B: 0x73, A: 0xff}
	Purple = color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff}
	Sky    = color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff}
	Amber  = color.RGBA{R: 0xe6, G: 0x9f, A: 0xff}
	Olive  = color.RGBA{R: 0x80, G: 0x80, A: 0xff}
)

// Series is a line of a plot.
type Series struct {
	Name   string
	Color  color.Color
	Dashed bool
	Points plotter.XYs
}

// Axes describes the axes of a plot, and where it has room for the legend.
type Axes struct {
	X, Y string
	// Without both, the legend is at the lower right. At the top right, room is made for it
	// above the plot.
	LegendOnTop, LegendOnLeft bool
	// FromX and ToX bound the part that is shown; if they are equal, all is.
	FromX, ToX float64
}

// mostSteps keeps a page with many values small: a plot is not wide enough to show more.
const mostSteps = 400

// CDF returns the cumulative distribution of the values: which share is at most how large.
// From very many values it takes some, evenly spread by rank.
func CDF(values []float64) plotter.XYs {
	sorted := slices.Sorted(slices.Values(values))
	steps := min(len(sorted), mostSteps)
	var points plotter.XYs
	before := 0.0
	for i := 1; i <= steps; i++ {
		rank := i * len(sorted) / steps
		share := float64(rank) / float64(len(sorted))
		points = append(points, plotter.XY{X: sorted[rank-1], Y: before}, plotter.XY{X: sorted[rank-1], Y: share})
		before = share
	}
	return points
}

// Lines draws lines. Without FromX and ToX both axes begin at zero.
func Lines(axes Axes, lines []Series) (string, error) {
	p := axes.plot()
	for _, l := range lines {
		if len(l.Points) == 0 {
			continue
		}
		drawn, err := plotter.NewLine(axes.visible(l.Points))
		if err != nil {
			return "", fmt.Errorf("plot %s: %w", l.Name, err)
		}
		drawn.Color = l.Color
		drawn.Width = vg.Points(1.2)
		if l.Dashed {
			drawn.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		p.Add(drawn)
		p.Legend.Add(l.Name, drawn)
	}
	p.Y.Min = 0
	if axes.FromX != axes.ToX {
		p.X.Min, p.X.Max = axes.FromX, axes.ToX
	} else {
		p.X.Min = 0
		p.X.Max *= 1.05
	}
	if axes.LegendOnTop && !axes.LegendOnLeft {
		p.Y.Max *= 1 + 0.12*float64(len(lines))
	}
	return svg(p)
}

func (a Axes) plot() *plot.Plot {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = a.X, a.Y
	for _, style := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font.Variant = "Sans"
	}
	p.Legend.Top, p.Legend.Left = a.LegendOnTop, a.LegendOnLeft
	p.Legend.Padding = vg.Points(2)
	p.Legend.XOffs = -vg.Points(6)
	if a.LegendOnLeft {
		p.Legend.XOffs = vg.Points(6)
	}
	// A browser's font may be wider than the one that is measured here.
	p.Legend.ThumbnailWidth = vg.Points(24)
	p.Add(plotter.NewGrid())
	return p
}

// visible moves points outside the shown part to its edge: gonum would draw them beyond it.
func (a Axes) visible(points plotter.XYs) plotter.XYs {
	if a.FromX == a.ToX {
		return points
	}
	moved := slices.Clone(points)
	for i := range moved {
		moved[i].X = min(max(moved[i].X, a.FromX), a.ToX)
	}
	return moved
}

func svg(p *plot.Plot) (string, error) {
	canvas := vgsvg.New(width, height)
	p.Draw(draw.New(canvas))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return "", fmt.Errorf("write a plot: %w", err)
	}
	// Inside a page, no XML declaration may come before the element.
	if start := bytes.Index(out.Bytes(), []byte("<svg")); start > 0 {
		out.Next(start)
	}
	return out.String(), nil
}
