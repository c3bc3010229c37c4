package agent

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"libra.dev/libra/pkg/pool"
)

// simRequest is a request of a simulated node.
type simRequest struct {
	pod  int
	at   time.Duration
	cpu  time.Duration // that it takes, by one thread
	work               // what is known of it
	from time.Duration // when its pod took it
	took time.Duration
}

// simPod is a pod of a simulated node.
type simPod struct {
	concurrency int   // requests at a time; 0 is any number
	allocation  int64 // milli CPU
	strict      bool
}

// simNode is a node whose CPU is divided among pods by weights, in parts as small as needed, and
// within a pod evenly among its requests.
type simNode struct {
	cores    float64
	pods     []simPod
	ranking  func([]work) []work // what weights go by; nil leaves them the kubelet's
	ordered  bool                // the shortest request that waits for a pod is the next
	quick    time.Duration       // nobody is told of requests predicted to take less
	requests []*simRequest       // by at

	now     time.Duration
	inPod   [][]*simRequest
	waiting [][]*simRequest
	weights []int64
}

const (
	simKubelet = 100 // the weight that it gives every pod
	simStep    = time.Nanosecond
	simSeeds   = 10 // the figures in weights.go are of 40
	// simSeenAfter is when, on average, the agent sees that a pod uses CPU of which nobody told.
	simSeenAfter = weighEvery / 2
)

// simulatedLoad returns requests to some pods over a time: heavy-tailed, 40 ms of CPU on average,
// in bursts, and together as much load as says load on so many cores.
func simulatedLoad(seed uint64, pods int, over time.Duration, cores, load float64) []*simRequest {
	rng := rand.New(rand.NewPCG(seed, 1))
	const mean, spread = 40 * time.Millisecond, 1.0
	var requests []*simRequest
	var at time.Duration
	for {
		rate := load * cores / mean.Seconds()
		if at/(5*time.Second)%2 == 0 {
			rate *= 0.6
		} else {
			rate *= 1.4
		}
		if at += time.Duration(rng.ExpFloat64() / rate * float64(time.Second)); at >= over {
			return requests
		}
		cpu := time.Duration(float64(mean) * math.Exp(spread*rng.NormFloat64()-spread*spread/2))
		predicted := time.Duration(float64(cpu) * math.Exp(0.3*rng.NormFloat64()))
		requests = append(requests, &simRequest{pod: rng.IntN(pods), at: at, cpu: cpu, work: work{predicted: predicted}})
	}
}

// run serves all requests.
func (s *simNode) run() {
	s.inPod, s.waiting, s.weights = make([][]*simRequest, len(s.pods)), make([][]*simRequest, len(s.pods)), make([]int64, len(s.pods))
	var weighedAt time.Duration
	coming := s.requests
	for left := len(s.requests); left > 0; {
		changed := false
		for len(coming) > 0 && coming[0].at <= s.now {
			s.waiting[coming[0].pod] = append(s.waiting[coming[0].pod], coming[0])
			coming, changed = coming[1:], true
		}
		for pod, p := range s.pods {
			for len(s.waiting[pod]) > 0 && (p.concurrency == 0 || len(s.inPod[pod]) < p.concurrency) {
				next := s.next(pod)
				s.waiting[pod][next].from = s.now
				s.inPod[pod] = append(s.inPod[pod], s.waiting[pod][next])
				s.waiting[pod] = slices.Delete(s.waiting[pod], next, next+1)
				changed = true
			}
		}
		if changed || s.now-weighedAt >= weighEvery {
			s.weigh()
			weighedAt = s.now
		}
		left -= s.pass(coming, weighedAt+weighEvery)
	}
}

// next returns which of the requests that wait for a pod the pod takes next.
func (s *simNode) next(pod int) int {
	if !s.ordered {
		return 0
	}
	key := func(r *simRequest) time.Duration { return r.predicted - (s.now-r.at)/50 }
	least := 0
	for i, r := range s.waiting[pod] {
		if key(r) < key(s.waiting[pod][least]) {
			least = i
		}
	}
	return least
}

// weigh sets the weights as the agent does.
func (s *simNode) weigh() {
	var flying []int
	var pods []contender
	for pod, here := range s.inPod {
		s.weights[pod] = simKubelet
		if len(here) == 0 {
			continue
		}
		c := contender{pod: fmt.Sprint(pod), kubelet: simKubelet, allocation: s.pods[pod].allocation, strict: s.pods[pod].strict}
		var untold work
		for _, r := range here {
			if r.predicted >= s.quick {
				c.works = append(c.works, r.work)
				c.ran = max(c.ran, s.now-r.from)
			} else if s.now-r.from >= simSeenAfter {
				untold.used += r.used
			}
		}
		if len(c.works) == 0 && untold.used > 0 {
			untold.predicted = untold.used + untoldLeft
			c.works = []work{untold}
		}
		if s.ranking != nil && len(c.works) > 0 {
			c.works = s.ranking(c.works)
			flying, pods = append(flying, pod), append(pods, c)
		}
	}
	for i, weight := range weigh(pods, v1Weights) {
		s.weights[flying[i]] = weight
	}
}

// pass lets time pass until something happens, and returns how many requests have ended.
func (s *simNode) pass(coming []*simRequest, until time.Duration) (ended int) {
	rates := s.rates()
	if len(coming) > 0 {
		until = min(until, coming[0].at)
	}
	for pod, here := range s.inPod {
		for _, r := range here {
			if rates[pod] > 0 {
				until = min(until, s.now+time.Duration(float64(r.cpu-r.used)/rates[pod])+simStep)
			}
		}
	}
	passed := max(simStep, until-s.now)
	s.now += passed
	for pod, here := range s.inPod {
		s.inPod[pod] = slices.DeleteFunc(here, func(r *simRequest) bool {
			r.used += time.Duration(rates[pod] * float64(passed))
			if r.used < r.cpu-simStep {
				return false
			}
			r.took = s.now - r.at
			ended++
			return true
		})
	}
	return ended
}

// rates returns the cores that each request of a pod has. A thread has one at most, and others
// have what it cannot use.
func (s *simNode) rates() []float64 {
	rates := make([]float64, len(s.pods))
	busy := map[int]float64{} // weights
	for pod, here := range s.inPod {
		if len(here) > 0 {
			busy[pod] = float64(s.weights[pod])
		}
	}
	cores := s.cores
	for len(busy) > 0 {
		var sum float64
		for _, w := range busy {
			sum += w
		}
		share, full := cores/sum, false
		for pod := range s.pods {
			if n := float64(len(s.inPod[pod])); busy[pod] > 0 && share*busy[pod] >= n {
				rates[pod], cores, full = 1, cores-n, true
				delete(busy, pod)
			}
		}
		if full {
			continue
		}
		for pod, w := range busy {
			rates[pod] = share * w / float64(len(s.inPod[pod]))
		}
		break
	}
	return rates
}

// simulated is the result of a load: the mean slow-down, the median slow-down of requests of up
// to 100 ms of CPU, and the P99 of response times.
type simulated struct {
	mean, short float64
	p99         time.Duration
}

func simulate(ranking func([]work) []work) simulated {
	return simulateTelling(simPods(false), ranking, 0, 0)
}

// simPods are ten pods, half of which take one request at a time.
func simPods(strict bool) (pods []simPod) {
	for i := range 10 {
		pods = append(pods, simPod{concurrency: i % 2, allocation: 300, strict: strict})
	}
	return pods
}

// simulateTelling tells only of requests that are not quick. Telling of one takes some CPU.
func simulateTelling(pods []simPod, ranking func([]work) []work, quick, cost time.Duration) simulated {
	const cores, load = 2.0, 0.95
	var ended []*simRequest
	for seed := range uint64(simSeeds) {
		s := simNode{
			cores: cores, pods: pods, ranking: ranking, ordered: ranking != nil, quick: quick,
			requests: simulatedLoad(seed, len(pods), time.Minute, cores, load),
		}
		for _, r := range s.requests {
			if r.predicted >= quick {
				s.cores -= cost.Minutes() // of a minute
			}
		}
		s.run()
		ended = append(ended, s.requests...)
	}
	return summarize(ended)
}

func summarize(requests []*simRequest) simulated {
	var all, short []float64
	var took []time.Duration
	var sum float64
	for _, r := range requests {
		slowdown := float64(r.took) / float64(r.cpu)
		all, took, sum = append(all, slowdown), append(took, r.took), sum+slowdown
		if r.cpu <= 100*time.Millisecond {
			short = append(short, slowdown)
		}
	}
	slices.Sort(short)
	slices.Sort(took)
	return simulated{sum / float64(len(all)), short[len(short)/2], took[len(took)*99/100]}
}

// leastLeft ranks a pod by the request in it that is done soonest, as if it were alone.
func leastLeft(works []work) []work {
	var all work // one request that has used what all have
	for _, w := range works {
		all.used += w.used
	}
	all.predicted = 1
	one := slices.MinFunc(works, func(a, b work) int { return cmp.Compare(a.left(), b.left()) })
	if left := one.left(); left != never {
		all.predicted = all.used + left
	}
	return []work{all}
}

// TestWeightsOnAFullNode finds what weights and the queue's order are worth on a full node whose
// CPU they divide at no cost: to short requests, on average, and to the longest. Ranking pods by
// the least that is left of a request, whatever else shares the pod's CPU with it, is worth less.
// Being told of quick requests is worth little, and less than it costs.
func TestWeightsOnAFullNode(t *testing.T) {
	own := simulate(nil)
	over := func(ranked string, s simulated) (short, mean float64) {
		short, mean = s.short/own.short, s.mean/own.mean
		t.Logf("ranked by %s: median slow-down of short requests %.2f, mean %.2f, P99 %.2f of the kubelet's", ranked, short, mean, float64(s.p99)/float64(own.p99))
		return short, mean
	}
	t.Logf("with the kubelet's weights: median slow-down of short requests %.1f, mean %.1f, P99 %v", own.short, own.mean, own.p99)
	short, mean := over("who has something done soonest", simulate(func(works []work) []work { return works }))
	const quick, cost = pool.QuickCPU, 2 * time.Millisecond
	every := func(works []work) []work { return works }
	_, quickMean := over("the same, nobody told of quick ones", simulateTelling(simPods(false), every, quick, 0))
	_, told := over("the same, where to tell of a request takes 2 ms of CPU", simulateTelling(simPods(false), every, 0, cost))
	_, untold := over("both", simulateTelling(simPods(false), every, quick, cost))
	strictShort, strictMean := over("who has something done soonest, where nobody who is owed gives way", simulateTelling(simPods(true), every, 0, 0))
	leastShort, leastMean := over("the least that is left", simulate(leastLeft))
	if short > 0.8 || mean > 0.9 {
		t.Errorf("%.2f to short requests and %.2f on average, want 0.8 and 0.9 at most", short, mean)
	}
	if strictShort > 1 || strictMean > 1 {
		t.Errorf("%.2f to short requests and %.2f on average where nobody who is owed gives way, want no more than with the kubelet's weights", strictShort, strictMean)
	}
	if quickMean > mean+0.06 || untold > told {
		t.Errorf("%.2f on average where nobody is told of quick ones, and %.2f where all are told of; where that takes CPU %.2f and %.2f",
			quickMean, mean, untold, told)
	}
	if mean > leastMean && short > leastShort {
		t.Errorf("%.2f to short requests and %.2f on average; by the least that is left %.2f and %.2f", short, mean, leastShort, leastMean)
	}
}
