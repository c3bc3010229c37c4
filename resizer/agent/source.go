package agent

import "context"

// takeCPU makes the CPU limit of a container the agent's again, as its owner is the source
// once more: the journal has named the container for its memory since the node was. Until
// the ceiling, or whatever others have set, is out of force, it stays theirs.
func (r *reflex) takeCPU(ctx context.Context, e *entry) {
	b := r.balance(e)
	if e.info.node || !e.takesPart() || e.debtor == "" || e.allocation.CPUMilli != 0 || e.info.allocation.CPUMilli == 0 {
		return
	}
	allocation := e.allocation
	allocation.CPUMilli = e.info.allocation.CPUMilli
	before := e.allocation
	e.owe(allocation)
	if limit := e.reading.Limit.CPUMilli; limit != e.owed.CPUMilli && limit != e.due(b).CPUMilli || !r.owe(ctx, e) {
		e.owe(before)
		return
	}
	e.watch = watch{} // what it used up to its ceiling is no want of what it lends
}
