package evaluation

import (
	"fmt"
	"math"

	"libra.dev/libra/loadtest/bench/stats"
)

// fewBlocks is how many blocks are too few to tell what the CPU that the hypervisor took has to do with
// their slow-downs.
const fewBlocks = 8

// blocksTable shows how much the blocks of an arm differ, and what the hypervisor took from each.
func (c *comparison) blocksTable(k combination) table {
	arms := c.armsOf(k)
	most := 0
	for _, arm := range arms {
		most = max(most, len(c.blocks[k][arm]))
	}
	if most < 2 {
		return table{}
	}
	t := table{Caption: "Mean slow-down of each block, and the share of the CPU that the hypervisor took", Head: []string{"policy"}}
	for n := range most {
		t.Head = append(t.Head, fmt.Sprint(n+1))
	}
	for _, arm := range arms {
		row := []string{c.title(arm)}
		for _, b := range c.blocks[k][arm] {
			row = append(row, fmt.Sprintf("%s, %.1f %%", times(c.slowdownOf(k, b)), 100*b.CPU.StolenShare()))
		}
		for len(row) < len(t.Head) {
			row = append(row, "")
		}
		t.add(row...)
	}
	return t
}

// slowdownOf returns the mean slow-down of a block.
func (c *comparison) slowdownOf(k combination, b Block) float64 {
	answers, _ := c.answers(k, b.Arm, []int{b.Number}, false)
	var values []float64
	for _, a := range answers {
		if v := meanSlowdown.of(a); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return stats.Mean(values).Estimate
}

// stealTold says what the CPU that the hypervisor took has to do with the slow-downs of a load's blocks;
// nothing where it took little from all of them, or where there are few.
func (c *comparison) stealTold(k combination) []string {
	var taken, slowdown [][]float64
	blocks, most := 0, 0.0
	for _, arm := range c.armsOf(k) {
		var of, logs []float64
		for _, b := range c.blocks[k][arm] {
			if v := math.Log(c.slowdownOf(k, b)); !math.IsNaN(v) && !math.IsInf(v, 0) {
				of, logs = append(of, 100*b.CPU.StolenShare()), append(logs, v)
				most = max(most, b.CPU.StolenShare())
			}
		}
		taken, slowdown, blocks = append(taken, of), append(slowdown, logs), blocks+len(of)
	}
	slope, correlation := within(taken, slowdown)
	if blocks < fewBlocks || most <= mostStolenFull || math.IsNaN(correlation) {
		return nil
	}
	return []string{fmt.Sprintf("Among blocks of the same policy, %s is the factor of the mean slow-down that goes with each hundredth of the CPU that the hypervisor took. The correlation is %.2f, in %d blocks. Which of the two is the cause was not measured.",
		times(math.Exp(slope)), correlation, blocks)}
}

// within returns the slope of y over x, and their correlation, by how far each value is from the mean of its
// group; NaN where all values of a group are the same.
func within(x, y [][]float64) (slope, correlation float64) {
	var xx, xy, yy float64
	for g := range x {
		mx, my := stats.Mean(x[g]).Estimate, stats.Mean(y[g]).Estimate
		for i := range x[g] {
			dx, dy := x[g][i]-mx, y[g][i]-my
			xx, xy, yy = xx+dx*dx, xy+dx*dy, yy+dy*dy
		}
	}
	return xy / xx, xy / math.Sqrt(xx*yy)
}
