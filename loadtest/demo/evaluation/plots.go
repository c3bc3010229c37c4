package evaluation

import (
	"fmt"
	"html/template"
	"image/color"
	"slices"
	"time"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg/draw"

	"libra.dev/libra/loadtest/demo/plot"
)

// figure is a plot with its title.
type figure struct {
	Title string
	SVG   template.HTML
}

type figures struct {
	all []figure
	err error
}

// add keeps the first error, and leaves out a plot of nothing.
func (f *figures) add(title string, axes plot.Axes, draw func(plot.Axes, []plot.Series) (string, error), series []plot.Series) {
	empty := !slices.ContainsFunc(series, func(s plot.Series) bool { return len(s.Points) > 0 })
	if f.err != nil || empty {
		return
	}
	svg, err := draw(axes, series)
	if err != nil {
		f.err = fmt.Errorf("%s: %w", title, err)
		return
	}
	f.all = append(f.all, figure{title, template.HTML(svg)})
}

var (
	policyColors = map[string]color.Color{
		Stock: plot.Black, Again: plot.Grey, Libra: plot.Orange,
		NoSafeguard: plot.Blue, NoPredictor: plot.Green, NoBoth: plot.Purple, Freyr: plot.Sky,
	}
	otherColors = []color.Color{plot.Amber, plot.Olive, plot.Blue, plot.Green}
)

// series is one of a policy, in its colour. Those that the paper does not have are dashed.
func (d Data) series(policy string, points plotter.XYs) plot.Series {
	s := plot.Series{Name: d.title(policy), Points: points}
	if c, ok := policyColors[policy]; ok {
		s.Color = c
		return s
	}
	place := max(0, slices.IndexFunc(d.Policies, func(p Policy) bool { return p.Name == policy }))
	s.Color, s.Dashed = otherColors[place%len(otherColors)], true
	return s
}

func (d Data) responsePlots(c Comparison) ([]figure, error) {
	var f figures
	for _, w := range c.Workloads {
		var lines []plot.Series
		for _, p := range d.policies(w) {
			var seconds []float64
			for _, run := range d.runs(p, w) {
				for _, ms := range run.milliseconds("") {
					seconds = append(seconds, ms/1000)
				}
			}
			lines = append(lines, d.series(p, plot.CDF(seconds)))
		}
		f.add(paperFigure("Response times", "6(a)", w)+", all rounds", plot.Axes{X: "response time, s", Y: "share of requests"}, plot.Lines, lines)
	}
	return f.all, f.err
}

// The part of the speed-ups that is shown: what is slowed down to more than twice the time
// is at the left edge.
const fromSpeedup, toSpeedup = -1, 1

func (d Data) speedupPlots(c Comparison) ([]figure, error) {
	var f figures
	for _, w := range c.Workloads {
		var lines []plot.Series
		for _, v := range c.Versus {
			if v.Workload == w {
				lines = append(lines, d.series(v.Policy, plot.CDF(speedups(v.Pairs))))
			}
		}
		axes := plot.Axes{X: "speed-up against stock", Y: "share of pairs", FromX: fromSpeedup, ToX: toSpeedup, LegendOnTop: true, LegendOnLeft: true}
		f.add(paperFigure("Speed-up", "6(b)", w), axes, plot.Lines, lines)
	}
	return f.all, f.err
}

// paperFigure names the workload, and the figure of the paper that has it.
func paperFigure(what, mixed, workload string) string {
	title := fmt.Sprintf("%s, workload %s", what, workload)
	if number, ok := map[string]string{Mixed: mixed, Related: "13(b)", Unrelated: "13(c)"}[workload]; ok {
		title += fmt.Sprintf(" (figure %s)", number)
	}
	return title
}

func (d Data) utilisationPlots(c Comparison) ([]figure, error) {
	var f figures
	for _, resource := range []struct {
		name string
		of   func(Utilisation) float64
	}{
		{"CPU", func(u Utilisation) float64 { return u.CPU }},
		{"Memory", func(u Utilisation) float64 { return u.Memory }},
	} {
		var lines []plot.Series
		for _, t := range c.Timelines {
			var points plotter.XYs
			for _, m := range t.Moments {
				points = append(points, plotter.XY{X: float64(m.Second), Y: resource.of(m.Utilisation)})
			}
			lines = append(lines, d.series(t.Policy, points))
		}
		f.add(fmt.Sprintf("%s used / limits in force, workload %s, first round (figure 7)", resource.name, d.main()),
			plot.Axes{X: "time, s", Y: "utilisation", LegendOnTop: true}, plot.Lines, lines)
	}
	if runs := d.runs(Libra, d.main()); len(runs) > 0 {
		f.add(fmt.Sprintf("CPU limits in force, %s, workload %s, first round", d.title(Libra), d.main()),
			plot.Axes{X: "time, s", Y: "CPU limit, cores", LegendOnTop: true}, plot.Lines, runs[0].limits(d.Functions))
	}
	return f.all, f.err
}

var functionColors = []color.Color{
	plot.Blue, plot.Green, plot.Orange, plot.Purple, plot.Grey, plot.Black, plot.Sky, plot.Amber, plot.Olive,
}

// limits are the functions' CPU limits in force while the run lasted, by steps.
func (r Run) limits(functions []Function) []plot.Series {
	var lines []plot.Series
	for i, f := range functions {
		line := plot.Series{Name: f.Name, Color: functionColors[i%len(functionColors)], Dashed: i >= len(functionColors)}
		at, usages := r.usages(f.Name)
		last := 0.0
		for n, u := range usages {
			second := time.Duration(at[n] - r.Samples[0].At.UnixNano()).Seconds()
			cores := float64(u.limit(f).CPUMilli) / 1000
			switch {
			case n == 0:
			case cores != last:
				line.Points = append(line.Points, plotter.XY{X: second, Y: last})
			case n < len(usages)-1:
				continue
			}
			line.Points = append(line.Points, plotter.XY{X: second, Y: cores})
			last = cores
		}
		lines = append(lines, line)
	}
	return lines
}

var kindMarks = map[string]struct {
	color color.Color
	mark  draw.GlyphDrawer
}{
	Default:     {plot.Grey, draw.CircleGlyph{}},
	Accelerated: {plot.Green, draw.PlusGlyph{}},
	Harvested:   {plot.Blue, draw.RingGlyph{}},
	Safeguarded: {plot.Orange, draw.CrossGlyph{}},
}

func (d Data) reassignedPlots(c Comparison) ([]figure, error) {
	var f figures
	workload := d.main()
	for _, p := range d.policies(workload) {
		points := c.movedOf(p, workload)
		for _, resource := range []struct {
			name, unit string
			kind       func(Moved) string
			amount     func(Moved) float64
		}{
			{"CPU", "core-seconds", func(m Moved) string { return m.CPUKind }, func(m Moved) float64 { return m.CoreSeconds }},
			{"memory", "MiB-seconds", func(m Moved) string { return m.MemoryKind }, func(m Moved) float64 { return m.MiBSeconds }},
		} {
			byKind := map[string]plotter.XYs{}
			for _, m := range points {
				byKind[resource.kind(m)] = append(byKind[resource.kind(m)], plotter.XY{X: resource.amount(m), Y: m.Speedup})
			}
			var series []plot.Series
			for _, k := range Kinds {
				series = append(series, plot.Series{Name: k, Color: kindMarks[k].color, Mark: kindMarks[k].mark, Points: byKind[k]})
			}
			f.add(fmt.Sprintf("Reassigned %s, %s, workload %s (figure 8)", resource.name, d.title(p), workload),
				plot.Axes{X: "reassigned " + resource.unit, Y: "speed-up", LegendOnTop: true}, plot.Scatter, series)
		}
	}
	return f.all, f.err
}
