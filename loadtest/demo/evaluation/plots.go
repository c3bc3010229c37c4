package evaluation

import (
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot/plotter"

	"libra.dev/libra/loadtest/demo/plot"
)

// figureDrawn is a plot with its title.
type figureDrawn struct {
	Title string
	SVG   template.HTML
}

var (
	armColors = map[string]color.Color{
		Stock: plot.Black, Again: plot.Grey, Libra: plot.Orange, Owners: plot.Purple,
		NoLimits: plot.Blue, NoLimitsWeighted: plot.Sky, VPA: plot.Green,
	}
	otherColors = []color.Color{plot.Amber, plot.Olive, plot.Blue, plot.Green}
)

// series is one of an arm, in its colour. Ablations are dashed.
func (c *comparison) series(arm string, points plotter.XYs) plot.Series {
	s := plot.Series{Name: c.title(arm), Points: points}
	if shade, ok := armColors[arm]; ok {
		s.Color = shade
		return s
	}
	place := max(0, slices.IndexFunc(c.Arms, func(a Arm) bool { return a.Name == arm }))
	s.Color, s.Dashed = otherColors[place%len(otherColors)], true
	return s
}

// drawn draws lines, and nothing where there is none.
func drawn(title string, axes plot.Axes, lines []plot.Series) ([]figureDrawn, error) {
	if !slices.ContainsFunc(lines, func(s plot.Series) bool { return len(s.Points) > 0 }) {
		return nil, nil
	}
	svg, err := plot.Lines(axes, lines)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", title, err)
	}
	return []figureDrawn{{title, template.HTML(svg)}}, nil
}

// slowdownsShown are those in the plots: what is beyond is at the edge.
const slowdownsShown = 10

func (c *comparison) loadPlots(k combination) ([]figureDrawn, error) {
	var all, short []plot.Series
	for _, arm := range c.armsOf(k) {
		answers, _ := c.answers(k, arm, c.numbers(k, arm), false)
		var ofAll, ofShort []float64
		for _, a := range answers {
			if !math.IsNaN(a.slowdown) {
				if ofAll = append(ofAll, a.slowdown); a.short {
					ofShort = append(ofShort, a.slowdown)
				}
			}
		}
		all, short = append(all, c.series(arm, plot.CDF(ofAll))), append(short, c.series(arm, plot.CDF(ofShort)))
	}
	axes := plot.Axes{X: "times as long as alone", Y: "share of requests", ToX: slowdownsShown}
	of, err := drawn("Slow-down of all requests, "+k.String(), axes, all)
	if err != nil {
		return nil, err
	}
	ofShort, err := drawn("Slow-down of short requests, "+k.String(), axes, short)
	return append(of, ofShort...), err
}

func (c *comparison) byLoadPlots() ([]figureDrawn, error) {
	var figures []figureDrawn
	for _, shown := range []struct {
		figure figure
		axis   string
		unit   float64
	}{{p99Computing, "P99 of computing requests, s", 1000}, {meanSlowdown, "mean slow-down", 1}} {
		for _, pods := range []int{10, 40} {
			var lines []plot.Series
			for _, arm := range c.Arms {
				var points plotter.XYs
				for _, k := range c.of(PartRequests) {
					if v := c.value(k, arm.Name, shown.figure); k.pods == pods && v.measured() {
						points = append(points, plotter.XY{X: float64(k.load), Y: v.value / shown.unit})
					}
				}
				if len(points) > 0 {
					lines = append(lines, c.series(arm.Name, points))
				}
			}
			f, err := drawn(fmt.Sprintf("%s, %d pods", shown.figure.title, pods), plot.Axes{X: "load, %", Y: shown.axis, LegendOnTop: true, LegendOnLeft: true}, lines)
			if err != nil {
				return nil, err
			}
			figures = append(figures, f...)
		}
	}
	return figures, nil
}
