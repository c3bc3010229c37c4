package agent

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

// busyPod is a pod with calls in a row, of whose ends the agent hears. Its source is the node.
type busyPod struct {
	*testing.T
	*Agent
	clock *clocktesting.FakeClock
	*container
	reads    int // of all of the container
	cpu      time.Duration
	cpuMilli int64 // used from now on
	unguarded
}

func newBusyPod(t *testing.T, cpuMilli int64) *busyPod {
	p := &busyPod{T: t, clock: clocktesting.NewFakeClock(epoch), cpuMilli: cpuMilli}
	p.Agent, _, _ = newTestAgent(t, p.clock, nil, "", nil, nil)
	p.container = &container{cgroup: p, thinning: thinning{observed: observeFreely, at: epoch}}
	p.ranked.Store(true)
	p.containers.put("default/p", p.container)
	return p
}

func (p *busyPod) Read() (cgroup.Reading, error) {
	p.reads++
	return p.ReadUse()
}
func (p *busyPod) ReadUse() (cgroup.Reading, error) { return cgroup.Reading{CPU: p.cpu}, nil }
func (p *busyPod) CPU() (time.Duration, error)      { return p.cpu, nil }
func (p *busyPod) Close() error                     { return nil }

// work lets time pass in which the container uses cpuMilli.
func (p *busyPod) work(d time.Duration) {
	p.clock.Step(d)
	p.cpu += cpuTime(p.cpuMilli, d)
}

// sampleOnce takes a sample as if one were due.
func (p *busyPod) sampleOnce() { p.Agent.sample(p.Context(), "default/p", p.container) }

// ended makes the agent hear that a request has ended, and returns its observation, or the zero
// Observation.
func (p *busyPod) ended(e api.Ended) (o api.Observation) {
	e.Pod = "default/p"
	if p.Agent.observe(p.Context(), e, p.clock.Now(), false) == resultObserved {
		o = <-p.queue
	}
	return o
}

// The peak of a call in a row is what the call used itself, without what the call before it used
// since a sample long before.
func TestPeakOfShortCallsInARow(t *testing.T) {
	for _, threads := range []int64{1, 4} {
		for _, tc := range []struct {
			lasts            time.Duration
			lateBefore, late time.Duration // the news of the end of the one before it, and of its own
			least, most      int64         // milli CPU of each thread
		}{
			{ms(60), 0, 0, 1000, 1050},
			{ms(60), ms(8), ms(1), 900, 1050},
			{ms(60), ms(1), ms(8), 900, 1050},
			{ms(120), ms(5), ms(2), 1000, 1050},
			{ms(25), 0, 0, 1000, 1050},
			{ms(12), 0, 0, 1000, 1050},
			{ms(12), ms(6), ms(1), 500, 1050},
			{ms(5), 0, 0, 500, 1050},
			{ms(2), ms(1), ms(1), 100, 1050},
		} {
			p := newBusyPod(t, 1000)
			p.thinning.skip = 1
			p.work(ms(100))
			p.sampleOnce()
			p.work(ms(120))
			p.cpuMilli = 1000 * threads // of the next call
			p.work(tc.lateBefore)
			if o := p.ended(api.Ended{Alone: true, Duration: ms(100)}); o.Duration != 0 {
				t.Fatalf("the one before is observed: %+v", o)
			}
			p.work(tc.lasts - tc.lateBefore + tc.late)
			if got := p.ended(api.Ended{Alone: true, Duration: tc.lasts}).Peak.CPUMilli / threads; got < tc.least || got > tc.most {
				t.Errorf("one of %v and %d threads, heard of after %v and %v: its peak is %dm each, want from %dm to %dm",
					tc.lasts, threads, tc.lateBefore, tc.late, got, tc.least, tc.most)
			}
		}
	}
}

// If the news of the previous call's end comes so late that going by it would leave out part of the
// next call, it leaves out none.
func TestLateNewsOfTheOneBefore(t *testing.T) {
	p := newBusyPod(t, 0)
	p.thinning = thinning{}
	p.work(ms(150))
	p.sampleOnce()
	p.work(ms(50))
	p.sampleOnce()
	p.cpuMilli = 4000 // at first
	p.work(ms(100))
	p.cpuMilli = 0
	p.ended(api.Ended{Alone: true, Duration: ms(50)})
	p.work(ms(200))
	if got := p.ended(api.Ended{Alone: true, Duration: ms(300)}).Peak.CPUMilli; got < 3500 {
		t.Errorf("the peak is %dm, want about the 4000m of its beginning", got)
	}
}

// Observing about one call a second, of calls in a row, costs two readings; calls at the same time
// cost none.
func TestReadingsForEnds(t *testing.T) {
	for alone, most := range map[bool]int{true: 2 * 25, false: 0} {
		p := newBusyPod(t, 1000)
		p.work(time.Second)
		for range 1000 {
			p.work(ms(10))
			p.ended(api.Ended{Alone: alone, Duration: ms(10)})
		}
		if p.reads > most {
			t.Errorf("alone: %v: %d readings for 1000 ends in 10 s, want %d at most", alone, p.reads, most)
		}
	}
}
