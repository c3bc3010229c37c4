package agent

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"libra.dev/libra/pkg/scheduling"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

// waking makes a test binary one that is woken, and says how: "default" as the kernel has it,
// "scheduled" as the agent is.
const wakingEnv = "LIBRA_TEST_WAKING"

func init() {
	switch os.Getenv(wakingEnv) {
	case "scheduled":
		if err := scheduling.StartAnew(); err != nil {
			panic(err)
		}
		fallthrough
	case "default":
		tellWakes()
		os.Exit(0)
	}
}

// monotonic is a time by which two processes can be compared, in nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// tellWakes says how long after each time that it reads it came to do so.
func tellWakes() {
	runtime.LockOSThread()
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprintln(out, "ready")
	out.Flush() //nolint:errcheck // who reads it notices
	for {
		var sent int64
		if err := binary.Read(os.Stdin, binary.LittleEndian, &sent); err != nil {
			return
		}
		fmt.Fprintln(out, monotonic()-sent)
		out.Flush()                                                //nolint:errcheck // the same
		for until := monotonic() + 100_000; monotonic() < until; { // about what the agent does when it is told of a request
		}
	}
}

// BenchmarkKernelWake is how long a process with the agent's CPU request waits to run when it
// is woken, beside four with eighteen times that which never rest. One iteration is a wake.
func BenchmarkKernelWake(b *testing.B) {
	for _, how := range []string{"default", "scheduled"} {
		b.Run(how, func(b *testing.B) {
			name := cgrouptest.Name()
			group := func(pod string, shares, weight string) *cgrouptest.Container {
				c := cgrouptest.NewIn(b, name, "kubepods", "burstable", "pod"+name+pod, pod+"-"+name)
				c.Write(map[bool]string{false: shares, true: weight}[c.V2], c.PodFile("cpu.shares", "cpu.weight"))
				return c
			}
			busy := group("busy", "1843", "70")
			for range 4 {
				busy.Start(b).Do("burn")
			}

			self, err := os.Executable()
			if err != nil {
				b.Fatal(err)
			}
			woken := exec.Command(self)
			woken.Env = append(os.Environ(), wakingEnv+"="+how, "GOMAXPROCS=1")
			woken.Stderr = os.Stderr
			in, err := woken.StdinPipe()
			if err != nil {
				b.Fatal(err)
			}
			out, err := woken.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := woken.Start(); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				in.Close()   //nolint:errcheck // it ends by that
				woken.Wait() //nolint:errcheck // it has ended
			})
			lines := bufio.NewScanner(out)
			lines.Scan()
			group("woken", "102", "4").Add(woken.Process.Pid)

			var waits []time.Duration
			for b.Loop() {
				time.Sleep(20 * time.Millisecond)
				if err := binary.Write(in, binary.LittleEndian, monotonic()); err != nil {
					b.Fatal(err)
				}
				var wait time.Duration
				if lines.Scan(); lines.Err() != nil {
					b.Fatal(lines.Err())
				}
				if _, err := fmt.Sscan(lines.Text(), (*int64)(&wait)); err != nil {
					b.Fatalf("it says %q: %v", lines.Text(), err)
				}
				waits = append(waits, wait)
			}
			slices.Sort(waits)
			for _, percent := range []int{50, 90, 97, 99} {
				b.ReportMetric(float64(waits[(len(waits)-1)*percent/100].Microseconds()), fmt.Sprintf("p%d-µs", percent))
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
