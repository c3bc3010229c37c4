package report

import (
	"image/color"
	"time"

	"gonum.org/v1/plot/plotter"

	"libra.dev/libra/loadtest/demo/plot"
)

var functionColors = []color.Color{plot.Blue, plot.Green, plot.Orange, plot.Purple, plot.Grey}

// cdfPlot shows which share of a function's requests took at most how long.
func cdfPlot(d Data, function string) (string, error) {
	seconds := func(r Run) plotter.XYs {
		values := r.milliseconds(function)
		for i := range values {
			values[i] /= 1000
		}
		return plot.CDF(values)
	}
	// Its lower right corner is empty.
	return plot.Lines(plot.Axes{X: "response time, s", Y: "share of requests"}, []plot.Series{
		{Name: "stock", Color: plot.Black, Points: seconds(d.Stock)},
		{Name: "stock again", Color: plot.Grey, Points: seconds(d.Again)},
		{Name: "Libra", Color: plot.Orange, Points: seconds(d.Libra)},
	})
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
	var lines []plot.Series
	for i, f := range functions {
		l := plot.Series{Name: f, Color: functionColors[i%len(functionColors)]}
		last := 0.0
		for _, c := range d.Limits {
			if c.Function != f {
				continue
			}
			at := c.At.Sub(start).Seconds()
			if l.Points != nil {
				l.Points = append(l.Points, plotter.XY{X: at, Y: last})
			}
			last = float64(c.Limit.CPUMilli) / 1000
			l.Points = append(l.Points, plotter.XY{X: at, Y: last})
		}
		if l.Points != nil {
			l.Points = append(l.Points, plotter.XY{X: end, Y: last})
			lines = append(lines, l)
		}
	}
	return plot.Lines(plot.Axes{X: "time, s", Y: "CPU limit, cores", LegendOnTop: true}, lines)
}
