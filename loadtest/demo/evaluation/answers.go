package evaluation

import (
	"fmt"
	"math"
	"time"
)

const (
	// shortCPU is the most CPU that a short request needs alone.
	shortCPU = 100 // milliseconds
	// soon is how many times its time alone a request may take to count as goodput.
	soon = 5
	// harmedBeyond is by how much a request must be slower than in stock to count as
	// harmed.
	harmedBeyond = 0.10
	// sliceLength is the length of the pieces of a schedule that are resampled.
	sliceLength = 5 * time.Second
)

// answer is a request with the values by which it is compared.
type answer struct {
	Request
	slice int // of the schedules of all selected blocks
	// took and slowdown are the values that the request counts for. A failed request took
	// as long as the longest under the same load, of all arms, so that an arm gains nothing
	// by failing. slowdown is over the request's own time alone, and NaN if its input was
	// not run alone.
	took, slowdown float64
	failed         bool
	computing      bool // its function does not mostly wait
	short          bool // it computes, and not for long
}

// answers returns an arm's requests in the blocks with these numbers, and how many slices
// these blocks have.
func (c *comparison) answers(k combination, arm string, numbers []int, service bool) (all []answer, slices int) {
	key := fmt.Sprintf("%s %v %s %v %v", k.part, k, arm, numbers, service)
	found, ok := c.joined[key]
	if !ok {
		found.all, found.slices = c.join(k, arm, numbers, service)
		c.joined[key] = found
	}
	return found.all, found.slices
}

type joined struct {
	all    []answer
	slices int
}

func (c *comparison) join(k combination, arm string, numbers []int, service bool) (all []answer, slices int) {
	blocks := c.selected(k, arm, numbers)
	perBlock := 1
	for _, b := range blocks {
		perBlock = max(perBlock, int(math.Ceil(b.Length.Seconds()/sliceLength.Seconds())))
	}
	for i, b := range blocks {
		requests := b.Requests
		if service {
			if b.Bystander == nil {
				continue
			}
			requests = b.Bystander.Requests
		}
		for _, r := range requests {
			a := answer{
				Request: r, failed: r.Error != "",
				slice: i*perBlock + min(max(0, int(r.DueMS/float64(sliceLength.Milliseconds()))), perBlock-1),
				took:  r.Milliseconds, slowdown: none, computing: !c.waits[r.Function],
			}
			if a.failed {
				a.took = c.longest[k].took
				if service {
					a.took = c.longest[k].service
				}
			}
			if alone, ok := c.alone[input{r.Function, r.Input}]; ok && alone.Milliseconds > 0 && !service {
				a.slowdown = a.took / alone.Milliseconds
				// If the input's CPU could not be read, it is not known.
				a.short = a.computing && alone.CPUMilliseconds > 0 && alone.CPUMilliseconds <= shortCPU
			}
			all = append(all, a)
		}
	}
	return all, len(blocks) * perBlock
}

// harmed returns how many of an arm's requests are slower than stock's by more than
// harmedBeyond, and how many requests both have. A request that failed only under the arm
// is harmed, one that failed in both is not.
func (c *comparison) harmed(k combination, arm string) (harmed, of int) {
	numbers := c.common(k, arm, Stock)
	mine, _ := c.answers(k, arm, numbers, false)
	stocks, _ := c.answers(k, Stock, numbers, false)
	for i := range mine {
		if mine[i].failed && !stocks[i].failed || !mine[i].failed && mine[i].took > (1+harmedBeyond)*stocks[i].took {
			harmed++
		}
	}
	return harmed, len(mine)
}
