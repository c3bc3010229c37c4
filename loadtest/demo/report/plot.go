package report

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	plotWidth  = 16 * vg.Centimeter
	plotHeight = 8 * vg.Centimeter
)

// Told apart by people who do not see every colour.
var (
	grey   = color.RGBA{R: 0x99, G: 0x99, B: 0x99, A: 0xff}
	black  = color.RGBA{A: 0xff}
	orange = color.RGBA{R: 0xd5, G: 0x5e, A: 0xff}
	blue   = color.RGBA{G: 0x72, B: 0xb2, A: 0xff}
	green  = color.RGBA{G: 0x9e, B: 0x73, A: 0xff}
	purple = color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff}

	functionColors = []color.Color{blue, green, orange, purple, grey}
)

// line is one series of a plot.
type line struct {
	name   string
	color  color.Color
	points plotter.XYs
}

// cdfPlot shows which share of a function's requests took at most how long.
func cdfPlot(d Data, function string) (string, error) {
	// Its lower right corner is empty.
	return stepPlot("response time, s", "share of requests", false, []line{
		{"stock", black, cdf(d.Stock.milliseconds(function))},
		{"stock again", grey, cdf(d.Again.milliseconds(function))},
		{"Libra", orange, cdf(d.Libra.milliseconds(function))},
	})
}

func cdf(milliseconds []float64) plotter.XYs {
	sorted := slices.Sorted(slices.Values(milliseconds))
	var points plotter.XYs
	for i, v := range sorted {
		points = append(points,
			plotter.XY{X: v / 1000, Y: float64(i) / float64(len(sorted))},
			plotter.XY{X: v / 1000, Y: float64(i+1) / float64(len(sorted))})
	}
	return points
}

// limitsPlot shows the functions' CPU limits while Libra's run lasted.
func limitsPlot(d Data, functions []string) (string, error) {
	if len(d.Limits) == 0 {
		return "", nil
	}
	start := d.Limits[0].At
	end := d.Limits[len(d.Limits)-1].At.Sub(start).Seconds()
	for _, r := range d.Libra.Results {
		end = max(end, time.UnixMilli(r.SentMS).Sub(start).Seconds()+r.DurationMS/1000)
	}
	var lines []line
	for i, f := range functions {
		l := line{name: f, color: functionColors[i%len(functionColors)]}
		last := 0.0
		for _, c := range d.Limits {
			if c.Function != f {
				continue
			}
			at := c.At.Sub(start).Seconds()
			if l.points != nil {
				l.points = append(l.points, plotter.XY{X: at, Y: last})
			}
			last = float64(c.Limit.CPUMilli) / 1000
			l.points = append(l.points, plotter.XY{X: at, Y: last})
		}
		if l.points != nil {
			l.points = append(l.points, plotter.XY{X: end, Y: last})
			lines = append(lines, l)
		}
	}
	return stepPlot("time, s", "CPU limit, cores", true, lines)
}

// stepPlot draws lines from the origin as an SVG element.
func stepPlot(x, y string, legendOnTop bool, lines []line) (string, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, style := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font.Variant = "Sans"
	}
	p.Legend.Top = legendOnTop
	p.Legend.Padding = vg.Points(2)
	p.Legend.XOffs = -vg.Points(6)
	// A browser's font may be wider than the one that is measured here.
	p.Legend.ThumbnailWidth = vg.Points(24)
	p.Add(plotter.NewGrid())
	for _, l := range lines {
		if len(l.points) == 0 {
			continue
		}
		drawn, err := plotter.NewLine(l.points)
		if err != nil {
			return "", fmt.Errorf("plot %s: %w", l.name, err)
		}
		drawn.Color = l.color
		drawn.Width = vg.Points(1.2)
		p.Add(drawn)
		p.Legend.Add(l.name, drawn)
	}
	p.X.Min, p.Y.Min = 0, 0
	p.X.Max *= 1.05
	if legendOnTop {
		p.Y.Max *= 1.6
	}
	canvas := vgsvg.New(plotWidth, plotHeight)
	p.Draw(draw.New(canvas))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return "", fmt.Errorf("write a plot: %w", err)
	}
	// Inside a page there is no room for the XML declaration before the element.
	if start := bytes.Index(svg.Bytes(), []byte("<svg")); start > 0 {
		svg.Next(start)
	}
	return svg.String(), nil
}
