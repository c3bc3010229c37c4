package evaluation

import (
	"fmt"
	"html/template"
	"image/color"
	"math"
	"os"
	"path/filepath"
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

// series returns the line of an arm, in its colour. Ablations are dashed.
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

// drawn draws lines, and nothing if there are none.
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

// slowdownsShown is the greatest slow-down in the plots: those beyond are at the edge.
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

// GlanceFile is the name of the file with the plot of the section at a glance.
const GlanceFile = "glance.svg"

var glanceArms = []string{Again, NoLimits, Libra}

// glancePlot plots P99 of computing requests over stock's. It draws nothing if stock or Libra was not
// measured.
func (c *comparison) glancePlot() (figureDrawn, bool, error) {
	var names []string
	var kinds []plot.Ratios
	for _, arm := range glanceArms {
		kinds = append(kinds, plot.Ratios{Name: c.title(arm), Color: armColors[arm]})
	}
	shown := false
	for _, k := range c.of(PartRequests) {
		for i, arm := range glanceArms {
			r := c.ratio(k, arm, Stock, p99Computing)
			if !r.measured() || math.IsNaN(r.low) {
				continue
			}
			shown = shown || arm == Libra
			kinds[i].Of = append(kinds[i].Of, plot.Ratio{At: len(names), Value: r.value, Low: r.low, High: r.high})
		}
		names = append(names, fmt.Sprintf("%d %%\n%d pods", k.load, k.pods))
	}
	if !shown {
		return figureDrawn{}, false, nil
	}
	svg, err := plot.Dots(plot.Axes{X: "load", Y: "P99, " + c.title(Stock) + " = 1", LegendOnTop: true, LegendOnLeft: true}, names, kinds)
	title := "P99 of computing requests, of " + c.title(Stock) + "'s, with 95 % intervals"
	return figureDrawn{title, template.HTML(svg)}, true, err
}

// writeGlance writes the plot to a file of its own, for other pages.
func (c *comparison) writeGlance(dir string) error {
	f, shown, err := c.glancePlot()
	if err != nil || !shown {
		return err
	}
	return os.WriteFile(filepath.Join(dir, GlanceFile), []byte(f.SVG), 0o644)
}
