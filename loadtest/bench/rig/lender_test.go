package rig

import (
	"testing"

	"go.uber.org/goleak"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The lender's invocations lend and borrow like an activator's, and a strike of the
// safeguard does not keep the next one from lending.
func TestLender(t *testing.T) {
	ctx := t.Context()
	addr := redistest.Start(t)
	l := newLender(ctx, addr)
	defer l.Close() //nolint:errcheck // checked below
	owed := api.Resources{CPUMilli: 1000, MemoryBytes: 64 << 20}
	donor, borrower := Pod{Name: "donor", Allocation: owed}, Pod{Name: "borrower", Allocation: owed}

	agent := pool.NewRedis(redisconn.MustParse(addr))
	defer agent.Close() //nolint:errcheck // only a test's
	state, err := agent.Read(ctx, Node)
	if err != nil {
		t.Fatal(err)
	}
	beat := pool.Heartbeat{
		Agent: "agent", Epoch: state.Epoch, Whole: true, Lendable: api.Resources{CPUMilli: 2000},
		Pods: map[string]int64{donor.Key(): 0, borrower.Key(): 0}, Rested: []string{donor.Key(), borrower.Key()}, RestedAt: state.Now,
	}
	if open, err := agent.Heartbeat(ctx, Node, beat); err != nil || !open {
		t.Fatalf("open: %v, %v", open, err)
	}
	for range 3 {
		volume := api.Resources{CPUMilli: 700}
		loan, refused, err := l.Loan(ctx, donor, borrower, volume, 500)
		if err != nil || loan.Volume != volume || refused != 0 {
			t.Fatalf("lent %v, refused %d times: %v", loan.Volume, refused, err)
		}
		if err := l.EndIdle(ctx, loan.Donor); err != nil {
			t.Fatal(err)
		}
		if state, err := agent.Read(ctx, Node); err != nil || !state.Pods[donor.Key()].Idle || state.Pods[donor.Key()].Lent != (api.Resources{CPUMilli: volume.CPUMilli}) {
			t.Fatalf("the donor has ended, and its pod is %+v, %v", state.Pods[donor.Key()], err)
		}
		if revoked, err := agent.Safeguard(ctx, Node, donor.Key(), true); err != nil || revoked != volume.CPUMilli {
			t.Fatalf("revoked %dm, %v", revoked, err)
		}
		if err := l.End(ctx, loan.Borrower, loan.Donor); err != nil {
			t.Fatal(err)
		}
	}
	if state, err = agent.Read(ctx, Node); err != nil || state.Begun != 0 || len(state.Pods) != 0 {
		t.Errorf("left: %+v, %v", state, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
