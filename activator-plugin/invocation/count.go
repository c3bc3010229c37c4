package invocation

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/report"
)

// reportedAs has the fields that count the reasons. A copy has none, because it is no user's request, nor
// has a sampled one, which is like the others that neither lend nor borrow.
var reportedAs = map[reason]report.Field{
	reasonClusterIP:        report.ClusterIP,
	reasonPodUnknown:       report.PodUnknown,
	reasonTooMany:          report.TooManyInFlight,
	reasonNotInPath:        report.NotInPath,
	reasonConcurrency:      report.Concurrency,
	reasonQueueProxyLimits: report.QueueProxyLimits,
	reasonNoLimits:         report.NoLimits,
	reasonNoPrediction:     report.NoPrediction,
	reasonUpgrade:          report.ConnectionUpgraded,
	reasonColdStart:        report.ColdStart,
	reasonFirst:            report.FirstInContainer,
	reasonMode:             report.Mode,
}

// seen is what a request was seen to be when it was dispatched.
type seen struct {
	why reason
	// bypassed says that others may be in its pod that went past the activator.
	bypassed bool
	// could is what it can lend and would borrow by the prediction, whatever the mode and the source.
	could volumes
	// perSlot is the same of a pod that is full of such requests, for each of them.
	perSlot volumes
}

// reason is why it takes no part, or takes part only partly.
func (s *seen) reason() reason {
	if s.bypassed {
		return reasonNotInPath
	}
	return s.why
}

// counts has the counts of all revisions, for reports of what Libra does or would do.
type counts struct {
	mu         sync.RWMutex
	byRevision map[types.NamespacedName]*count
	pasts      map[pastKey]*past
	asked      int64 // how often for a past
}

// count is that of one revision. A nil one counts nothing.
type count struct {
	sums [report.Fields]atomic.Int64
	past *past
	// quiet is for how many drains it has not changed. Only drain uses it.
	quiet int
}

// quietMost is for how many drains a count that does not change is kept. A request that lasts longer than
// that adds to a count that is lost.
const quietMost = 120

// of returns the count of a revision, or nil for a revision beyond the bound.
func (c *counts) of(revision *v1.Revision) *count {
	rev := types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name}
	c.mu.RLock()
	n, full := c.byRevision[rev], len(c.byRevision) >= report.MaxFunctions
	c.mu.RUnlock()
	if n != nil || full {
		return n
	}
	key := pastKeyOf(revision)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n = c.byRevision[rev]; n != nil || len(c.byRevision) >= report.MaxFunctions {
		return n
	}
	if c.byRevision == nil {
		c.byRevision = map[types.NamespacedName]*count{}
	}
	n = &count{past: c.pastOf(key)}
	c.byRevision[rev] = n
	return n
}

// pastOf returns the past for a key. At the bound it forgets the one that was not asked for the longest: a function that no
// longer exists, or has another spec now. The caller must hold mu.
func (c *counts) pastOf(key pastKey) *past {
	if c.pasts == nil {
		c.pasts = map[pastKey]*past{}
	}
	p := c.pasts[key]
	if p == nil {
		if len(c.pasts) >= report.MaxFunctions {
			c.forgetPast()
		}
		p = new(past)
		c.pasts[key] = p
	}
	c.asked++
	p.asked = c.asked
	return p
}

// forgetPast forgets a past, one that no revision is counted with if there is any.
func (c *counts) forgetPast() {
	for _, n := range c.byRevision {
		n.past.asked = c.asked
	}
	var oldest pastKey
	asked := int64(math.MaxInt64)
	for key, p := range c.pasts {
		if p.asked < asked {
			oldest, asked = key, p.asked
		}
	}
	delete(c.pasts, oldest)
}

// began counts a request that was dispatched.
func (n *count) began(s *seen) {
	if n == nil || s.why == reasonCopy {
		return
	}
	n.sums[report.Requests].Add(1)
	if field, ok := reportedAs[s.reason()]; ok {
		n.sums[field].Add(1)
	}
}

// ended counts what a request could have lent and would have borrowed while it ran.
func (n *count) ended(s *seen, ran time.Duration) {
	if n == nil || s.perSlot == (volumes{}) {
		return
	}
	add := func(f report.Field, sum int64) {
		if sum > 0 {
			n.sums[f].Add(sum)
		}
	}
	add(report.CouldLendCPU, report.CPUTime(s.perSlot.surplus.CPUMilli, ran))
	add(report.CouldLendMemory, report.MemoryTime(s.perSlot.surplus.MemoryBytes, ran))
	add(report.WouldBorrowCPU, report.CPUTime(s.perSlot.want.CPUMilli, ran))
	add(report.WouldBorrowMemory, report.MemoryTime(s.perSlot.want.MemoryBytes, ran))
}

// drain returns what was counted since the last call, with the stages of the functions. Requests do not wait for it.
func (c *counts) drain(stage func(types.NamespacedName) predict.Stage) report.Record {
	c.mu.RLock()
	all := maps.Clone(c.byRevision)
	c.mu.RUnlock()
	record := report.Record{}
	var quiet []types.NamespacedName
	for rev, n := range all {
		var sums report.Sums
		for i := range n.sums {
			sums[i] = n.sums[i].Swap(0)
		}
		if sums == (report.Sums{}) {
			if n.quiet++; n.quiet > quietMost {
				quiet = append(quiet, rev)
			}
			continue
		}
		n.quiet = 0
		switch stage(rev) {
		case predict.Learned:
			sums[report.FoundLearned]++
		case predict.Learning:
			sums[report.FoundLearning]++
		default:
			sums[report.FoundUnseen]++
		}
		record.Add(rev, &sums)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rev := range quiet {
		if n := c.byRevision[rev]; n != nil && n.sums[report.Requests].Load() == 0 {
			delete(c.byRevision, rev)
		}
	}
	return record
}

// Counted returns what was counted since the last call, and how far the predictor is with each function.
func (m *Manager) Counted(stage func(types.NamespacedName) predict.Stage) report.Record {
	return m.counts.drain(stage)
}
