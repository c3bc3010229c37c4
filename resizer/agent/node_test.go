package agent

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIdleCPU(t *testing.T) {
	const rest = "cpu  1 2 3 4\ncpu1 0 0 0 5000\nintr 5\n"
	var shared unix.CPUSet
	shared.Set(0)
	shared.Set(12)
	before, err := parseCPUTimes([]byte("cpu0 50 0 25 400 25 0 0 0 7 0\ncpu12 50 0 25 400 25 0 0 0 0 0\n"+rest), shared)
	if err != nil {
		t.Fatal(err)
	}
	after, err := parseCPUTimes([]byte("cpu0 100 0 75 450 75 0 0 0 99 0\ncpu12 100 0 75 450 75 0 0 0 0 0\n"+rest), shared)
	if err != nil {
		t.Fatal(err)
	}
	if got := after.idleMilli(before); got != 1000 { // 200 of 400 ticks, of two CPUs
		t.Errorf("%dm idle, want 1000m", got)
	}
	if got := before.idleMilli(after); got != 0 {
		t.Errorf("%dm idle after the counters began anew, want 0", got)
	}
	others := after
	others.of.Set(1)
	others.of.Clear(12)
	if got := others.idleMilli(before); got != 0 {
		t.Errorf("%dm idle when other CPUs are shared than before, want 0", got)
	}
	if got := lendableCPU(300, 2000, 1000); got != 1100 {
		t.Errorf("%dm to lend, want what borrowers use and what is idle less a tenth of the node, 1100m", got)
	}
	if got := lendableCPU(300, 0, 0); got != 0 {
		t.Errorf("%dm to lend before idle was measured, want 0", got)
	}
	if capacity, idle := useOfCPU(before, after); capacity != 2000 || idle != 1000 {
		t.Errorf("%dm idle of %dm, want 1000m of 2000m", idle, capacity)
	}
	if capacity, idle := useOfCPU(cpuTimes{}, after); capacity != 0 || idle != 0 {
		t.Errorf("%dm idle of %dm before that was measured", idle, capacity)
	}
	for _, text := range []string{"", rest, "cpu0\n", "cpu0 1 x 3\n" + rest} {
		if _, err := parseCPUTimes([]byte(text), shared); err == nil {
			t.Errorf("%q was read as times", text)
		}
	}
}

func TestNodeMemory(t *testing.T) {
	m, err := parseNodeMemory([]byte("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n"))
	if err != nil || m != (nodeMemory{total: 1000 << 10, free: 1 << 10, available: 400 << 10}) {
		t.Errorf("%+v, %v", m, err)
	}
	for _, tc := range []struct {
		used, available, pins, want int64
	}{
		{0, 400, 0, 250}, // a quarter of the node
		{0, 300, 0, 200}, // less a tenth
		{20, 300, 50, 170},
		{0, 50, 0, 0},
		{0, 400, 300, 0},
	} {
		got := lendableMemory(tc.used, nodeMemory{total: 1000, available: tc.available}, tc.pins)
		if got != tc.want {
			t.Errorf("of %+v %d bytes are to lend", tc, got)
		}
	}
	for _, text := range []string{"", "MemTotal: x kB\n", "MemTotal: -1 kB\n"} {
		if _, err := parseNodeMemory([]byte(text)); err == nil {
			t.Errorf("%q was read as memory", text)
		}
	}
	if _, err := readNodeMemory("/nowhere"); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("error %v, want one that names the file", err)
	}
}
