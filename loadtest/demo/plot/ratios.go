package plot

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Ratio is a ratio with its interval, neither end of which is NaN.
type Ratio struct {
	At               int // index of the name that it is under
	Value, Low, High float64
}

// Ratios are the ratios of one thing to another, under some of the names.
type Ratios struct {
	Name  string
	Color color.Color
	Of    []Ratio
}

// Dots draws ratios with their intervals, each kind beside the one before, on a scale on which half
// and twice are equally far from 1. Names are on the X axis.
func Dots(axes Axes, names []string, kinds []Ratios) (string, error) {
	p := axes.plot()
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(ratioTicks)
	p.NominalX(names...)
	one, err := plotter.NewLine(plotter.XYs{{X: -0.5, Y: 1}, {X: float64(len(names)) - 0.5, Y: 1}})
	if err != nil {
		return "", fmt.Errorf("plot the line at 1: %w", err)
	}
	p.Add(one)
	least, most := 1.0, 1.0
	for i, kind := range kinds {
		beside := (float64(i) - float64(len(kinds)-1)/2) * 0.2
		var points drawnRatios
		for _, r := range kind.Of {
			points.XYs = append(points.XYs, plotter.XY{X: float64(r.At) + beside, Y: r.Value})
			points.YErrors = append(points.YErrors, struct{ Low, High float64 }{r.Value - r.Low, r.High - r.Value})
			least, most = min(least, r.Low), max(most, r.High)
		}
		if len(points.XYs) == 0 {
			continue
		}
		dots, err := plotter.NewScatter(points)
		if err != nil {
			return "", fmt.Errorf("plot %s: %w", kind.Name, err)
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: kind.Color, Radius: vg.Points(3.5), Shape: draw.CircleGlyph{}}
		bars, err := plotter.NewYErrorBars(points)
		if err != nil {
			return "", fmt.Errorf("plot the intervals of %s: %w", kind.Name, err)
		}
		bars.Color, bars.Width = kind.Color, vg.Points(1.2)
		p.Add(bars, dots)
		p.Legend.Add(kind.Name, dots)
	}
	p.X.Min, p.X.Max = -0.5, float64(len(names))-0.5
	p.Legend.YOffs = -vg.Points(4)
	// The legend is above the highest ratio.
	p.Y.Min, p.Y.Max = least*0.9, most*math.Pow(1.25, float64(len(kinds)))
	return svg(p)
}

type drawnRatios struct {
	plotter.XYs
	plotter.YErrors
}

var ratioTicks = func() (ticks []plot.Tick) {
	for _, v := range []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100} {
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', -1, 64)})
	}
	return ticks
}()
