package evaluation

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestSlopeIsWithinGroups(t *testing.T) {
	// Each group rises by 2, whatever its level.
	slope, correlation := within([][]float64{{0, 1, 2}, {5, 6}}, [][]float64{{100, 102, 104}, {-7, -5}})
	if math.Abs(slope-2) > 1e-9 || math.Abs(correlation-1) > 1e-9 {
		t.Errorf("got %v, %v", slope, correlation)
	}
	if _, correlation := within([][]float64{{1, 1}}, [][]float64{{2, 3}}); !math.IsNaN(correlation) {
		t.Errorf("nothing varies, and the correlation is %v", correlation)
	}
}

// A report tells of steal if there is some, and shows it block by block.
func TestStealIsTold(t *testing.T) {
	d := synthetic{seed: 1, blocks: 4, requests: 50, arms: map[string]float64{Stock: 1, NoLimits: 1}}.data(busy)
	if told := compared(t, d).stealTold(busy); told != nil {
		t.Errorf("nothing was taken, and the report says %q", told)
	}
	for i := range d.Blocks {
		b := &d.Blocks[i]
		if b.Number%2 == 0 {
			continue
		}
		// A hundredth is taken, and everything takes three times as long.
		b.CPU.Stolen = b.CPU.Node / 99
		for j := range b.Requests {
			b.Requests[j].Milliseconds *= 3
		}
	}
	told := strings.Join(compared(t, d).stealTold(busy), " ")
	var factor float64
	if _, err := fmt.Sscanf(told, "Among blocks of the same policy, %f×", &factor); err != nil || factor < 2.5 || factor > 3.5 || !strings.Contains(told, "in 8 blocks") {
		t.Errorf("got %q, %v; want a factor of about 3", told, err)
	}
	rows := fmt.Sprint(compared(t, d).blocksTable(busy).Rows)
	if strings.Count(rows, "1.0 %") != 4 || strings.Count(rows, "0.0 %") != 4 {
		t.Errorf("got %s", rows)
	}
}
