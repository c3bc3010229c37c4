package main

import (
	"context"
	"time"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/rig"
)

// block is a stretch of a measurement with a figure of its own. The differences between blocks
// show how far the overall figure can be trusted.
const block = 5 * time.Second

// use is what a process used, by block.
type use struct {
	cores    []float64
	memory   []float64 // MiB at the end of each block
	anonMiB  float64   // at the end of the last block
	peakMiB  float64   // since it was started
	from, to time.Time
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// watch measures processes at the same time, for about length.
func (s *site) watch(ctx context.Context, length time.Duration, processes ...*process) ([]use, error) {
	uses := make([]use, len(processes))
	before := make([]time.Duration, len(processes))
	start := time.Now()
	last := start
	read := func(then func(i int, cpu time.Duration, m machine.Memory, passed time.Duration)) error {
		now := time.Now()
		for i, p := range processes {
			cpu, err := p.cpu()
			if err != nil {
				return err
			}
			m, err := p.memory()
			if err != nil {
				return err
			}
			then(i, cpu, m, now.Sub(last))
		}
		last = now
		return nil
	}
	if err := read(func(i int, cpu time.Duration, _ machine.Memory, _ time.Duration) { before[i] = cpu }); err != nil {
		return nil, err
	}
	for n := range int(length / block) {
		if n > 0 && n%4 == 0 {
			s.say("  %v of %v", block*time.Duration(n), length)
		}
		if err := rig.Pause(ctx, time.Until(start.Add(block*time.Duration(n+1)))); err != nil {
			return nil, err
		}
		err := read(func(i int, cpu time.Duration, m machine.Memory, passed time.Duration) {
			u := &uses[i]
			u.cores = append(u.cores, (cpu-before[i]).Seconds()/passed.Seconds())
			u.memory = append(u.memory, mebibytes(m.Now))
			u.anonMiB, u.peakMiB = mebibytes(m.Anonymous), mebibytes(m.Peak)
			before[i] = cpu
		})
		if err != nil {
			return nil, err
		}
	}
	for i := range uses {
		uses[i].from, uses[i].to = start, last
	}
	return uses, nil
}
