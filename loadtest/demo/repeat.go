package main

import (
	"context"
	"fmt"
	"time"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// repeatShare is the share of the time in which blocks may be measured again. On a machine
// whose neighbours are always busy, repeating is worth less than what it displaces.
const repeatShare = 0.05

// mayRepeat reports whether a block may be measured again. took is how long repeats have
// taken so far, since the time since the evaluation began, left the time that is left, and
// rest how long the blocks take that can no longer be left out.
func mayRepeat(took, since, left, rest time.Duration) bool {
	return took < time.Duration(repeatShare*float64(since)) && left > rest
}

// quietly measures a block of about this length, and once more if the hypervisor took too
// much CPU meanwhile and there is time beside the rest that is to be measured. It returns
// the block from which the hypervisor took less.
func (e *evaluate) quietly(ctx context.Context, length, rest time.Duration, measure func() (evaluation.Block, error)) (evaluation.Block, error) {
	first, err := measure()
	if err != nil || !first.Disturbed() {
		return first, err
	}
	taken := fmt.Sprintf("the hypervisor took %.1f %% of the CPU in block %d", 100*first.CPU.StolenShare(), e.measured)
	if !mayRepeat(e.repeated, time.Since(e.start), e.left(), rest+length) {
		e.say("%s; no time to measure it again", taken)
		return first, nil
	}
	e.say("%s; measuring it again", taken)
	e.planned++
	began := time.Now()
	second, err := measure()
	e.repeated += time.Since(began)
	switch {
	case ctx.Err() != nil:
		return first, ctx.Err()
	case err != nil:
		e.say("could not measure the block again: %v", err)
		return first, nil
	}
	return lessDisturbed(first, second), nil
}

func lessDisturbed(first, second evaluation.Block) evaluation.Block {
	if second.CPU.StolenShare() < first.CPU.StolenShare() {
		return second
	}
	return first
}

// keep adds a block to the data.
func (e *evaluate) keep(b evaluation.Block) {
	if failed := failures(b.Requests); failed > 0 {
		e.say("block %d: %d of %d requests failed, the first with: %s", e.measured, failed, len(b.Requests), firstError(b.Requests))
	}
	e.data.Blocks = append(e.data.Blocks, b)
	e.data.Arms = measuredArms(e.data.Blocks)
	e.data.Elapsed = time.Since(e.start)
}
