// Command measure runs the ten functions as plain processes on inputs of a seed,
// one request at a time, checks each answer, and prints what they used as a table
// in Markdown: the size of the bodies, the CPU and memory that they take, and how
// much of that the size of the body tells. Run it in the repository.
package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/functions/inputs"
)

const programs = "libra.dev/libra/loadtest/functions/cmd/"

func main() {
	count := flag.Int("inputs", 60, "`number` of inputs per function")
	seed := flag.Uint64("seed", 1, "random seed for the inputs")
	heavy := flag.Bool("heavy", false, "inputs like the evaluation's: mostly short, some long")
	only := flag.String("only", "", "functions to measure, `a,b,c`; empty for all ten")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *count, *seed, *heavy, *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, count int, seed uint64, heavy bool, only string) error {
	if count < 2 {
		return fmt.Errorf("-inputs is %d; it must be at least 2", count)
	}
	var functions []inputs.Function
	for _, f := range inputs.Functions {
		if only == "" || slices.Contains(strings.Split(only, ","), f.Name) {
			functions = append(functions, f)
		}
	}
	if len(functions) == 0 {
		return fmt.Errorf("-only is %q, which names none of the ten", only)
	}
	dir, err := os.MkdirTemp("", "functions-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	build := []string{"build", "-trimpath", "-o", dir, programs + "store"}
	for _, f := range functions {
		build = append(build, programs+f.Name)
	}
	cmd := exec.CommandContext(ctx, "go", build...)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the functions: %w: %s", err, said)
	}
	store, err := start(ctx, filepath.Join(dir, "store"))
	if err != nil {
		return err
	}
	defer store.stop()

	fmt.Fprintln(out, "| function | follows | body bytes | CPU p50 | CPU mean | CPU max | cores at most | peak memory | R² of size |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|---|---|")
	for _, f := range functions {
		m, err := measure(ctx, filepath.Join(dir, f.Name), f.Name, count, seed, heavy, store.url)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		fmt.Fprintln(out, m.row(f))
	}
	return nil
}

// measured is what one function used.
type measured struct {
	calls      []call
	peakMemory int64 // resident bytes
}

type call struct {
	bytes     int
	cpu, wall time.Duration
}

func measure(ctx context.Context, program, function string, count int, seed uint64, heavy bool, store string) (measured, error) {
	var m measured
	p, err := start(ctx, program, "STORE_URL="+store, "GOMAXPROCS=2", "GOMEMLIMIT=200MiB")
	if err != nil {
		return m, err
	}
	defer p.stop()
	for n := range count {
		in, err := inputs.Draw(function, seed, uint64(n))
		if heavy {
			in, err = inputs.Heavy(function, seed, n, count, 1)
		}
		if err != nil {
			return m, err
		}
		c, err := p.call(ctx, in)
		if err != nil {
			return m, fmt.Errorf("input %d of seed %d: %w", n, seed, err)
		}
		m.calls = append(m.calls, c)
	}
	memory, err := machine.MemoryOf(p.cmd.Process.Pid)
	m.peakMemory = memory.Peak
	return m, err
}

// call sends an input and checks what the answer says.
func (p *process) call(ctx context.Context, in inputs.Input) (call, error) {
	c := call{bytes: len(in.Body)}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(in.Body))
	if err != nil {
		return c, err
	}
	before, err := machine.CPU(p.cmd.Process.Pid)
	if err != nil {
		return c, err
	}
	sent := time.Now()
	if _, err := inputs.Exchange(http.DefaultClient, req, in.Expect); err != nil {
		return c, err
	}
	c.wall = time.Since(sent)
	after, err := machine.CPU(p.cmd.Process.Pid)
	c.cpu = after - before
	return c, err
}

func (m measured) row(f inputs.Function) string {
	byCPU := slices.SortedFunc(slices.Values(m.calls), func(a, b call) int { return cmp.Compare(a.cpu, b.cpu) })
	smallest, largest := m.calls[0].bytes, m.calls[0].bytes
	var total time.Duration
	cores := 0.0
	for _, c := range m.calls {
		smallest, largest = min(smallest, c.bytes), max(largest, c.bytes)
		total += c.cpu
		cores = max(cores, c.cpu.Seconds()/c.wall.Seconds())
	}
	follows := "content"
	if f.Related {
		follows = "size"
	}
	n := len(byCPU)
	ms := func(d time.Duration) string { return fmt.Sprintf("%.0f ms", 1e3*d.Seconds()) }
	return fmt.Sprintf("| `%s` (%s) | %s | %d to %d | %s | %s | %s | %.1f | %d MiB | %.2f |", f.Name, f.Title, follows,
		smallest, largest, ms(byCPU[n/2].cpu), ms(total/time.Duration(n)), ms(byCPU[n-1].cpu), cores, m.peakMemory>>20, explained(m.calls))
}

// explained returns how much of the logarithm of the CPU a line through the
// logarithm of the size explains: the square of their correlation.
func explained(calls []call) float64 {
	var x, y, xx, yy, xy float64
	for _, c := range calls {
		a, b := math.Log(float64(c.bytes)), math.Log(max(c.cpu.Seconds(), 1e-6))
		x, y, xx, yy, xy = x+a, y+b, xx+a*a, yy+b*b, xy+a*b
	}
	n := float64(len(calls))
	spread := (n*xx - x*x) * (n*yy - y*y)
	if spread <= 0 {
		return 0
	}
	return (n*xy - x*y) * (n*xy - x*y) / spread
}
