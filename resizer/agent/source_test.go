package agent

import (
	"os"
	"testing"
	"time"

	"libra.dev/libra/pkg/api"
)

// memoryLoanUnderNode has d lend 200m and 100 MiB to b while the node is the source, so that
// only the memory is lent, and both are at their ceilings.
func memoryLoanUnderNode(t *testing.T) *ranked {
	k := newTestRanked(t)
	k.add("default/d", "donor", 500)
	k.add("default/b", "borrower", 500)
	k.openPool()
	volume := api.Resources{CPUMilli: 200, MemoryBytes: 100 * mib}
	k.begin("1", "default/d", volume, api.Resources{})
	k.begin("2", "default/b", api.Resources{}, volume)
	k.exchange()
	k.want("donor", 500, 412)
	k.want("borrower", 500, 612)
	k.setCPU(2000)
	return k
}

// setCPU is what the kubelet writes to both.
func (k *ranked) setCPU(milli int64) {
	k.kernel["donor"].Limit.CPUMilli, k.kernel["borrower"].Limit.CPUMilli = milli, milli
	k.exchange()
}

func (k *ranked) owners() {
	for _, pod := range []string{"default/d", "default/b"} {
		k.inform(pod, func(i *podInfo) { i.node, i.lends = false, false })
	}
}

// When owners are the source again while a memory loan stands, loans of CPU are made as soon
// as the ceilings are out of force, and end as ever.
func TestOwnersAreTheSourceDuringAMemoryLoan(t *testing.T) {
	k := memoryLoanUnderNode(t)
	k.owners()
	k.rest(2 * time.Second)
	k.want("donor", 2000, 412) // the kubelet has yet to lower it
	k.want("borrower", 2000, 612)
	k.setCPU(500)
	k.want("donor", 300, 412)
	k.want("borrower", 700, 612)
	k.end("1")
	k.end("2")
	k.exchange()
	k.want("donor", 500, 512)
	k.want("borrower", 500, 512)
	k.rest(staleWindow + time.Second)
	if debts := k.debts(); len(debts) > 0 {
		t.Errorf("the journal still names %v", debts)
	}
	if n := k.counted("libra.agent.invariant.violations", ""); n != 0 {
		t.Errorf("%d violations", n)
	}
}

// The journal names the CPU before it is lowered: the next agent gives it back.
func TestCPUTakenInAMemoryLoanIsGivenBack(t *testing.T) {
	k := memoryLoanUnderNode(t)
	k.owners()
	k.setCPU(500)
	k.want("donor", 300, 412)
	k.start()
	k.want("donor", 500, 512)
	k.want("borrower", 500, 512)
}

// What another manager has set meanwhile stays, and the memory stays lent.
func TestCPUOfAnotherIsNotTaken(t *testing.T) {
	k := memoryLoanUnderNode(t)
	k.kernel["donor"].Limit.CPUMilli = 900
	k.owners()
	k.kernel["borrower"].Limit.CPUMilli = 500
	k.rest(3 * time.Second)
	k.want("donor", 900, 412)
	k.want("borrower", 500, 612) // nobody pays for more
}

// Without a journal nothing is lowered.
func TestCPUIsNotTakenWithoutAJournal(t *testing.T) {
	k := memoryLoanUnderNode(t)
	if err := os.RemoveAll(k.dir); err != nil {
		t.Fatal(err)
	}
	k.owners()
	k.setCPU(500)
	k.want("donor", 500, 412)
	k.want("borrower", 500, 612)
}

// What a donor used up to its ceiling does not fire its safeguard when it lends again.
func TestUseUnderACeilingDoesNotFireTheSafeguard(t *testing.T) {
	k := memoryLoanUnderNode(t)
	for range 50 {
		k.kernel["donor"].CPU += 20 * time.Millisecond // two cores
		k.pass(10 * time.Millisecond)
	}
	k.owners()
	k.setCPU(500)
	k.pass(100 * time.Millisecond)
	k.want("donor", 300, 412)
	if n := k.counted("libra.agent.safeguards", ""); n != 0 {
		t.Errorf("the safeguard fired %d times", n)
	}
}
