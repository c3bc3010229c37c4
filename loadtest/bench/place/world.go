package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

const namespace = "default"

var revision = types.NamespacedName{Namespace: namespace, Name: "thumb-00001"}

// owners is the source of all pods.
type owners struct{}

func (owners) Source(string, string) api.Source { return api.SourceOwners }
func (owners) For(string) settings.Settings     { return settings.Default }

// world is a function with a pod on each node, as an activator sees it.
type world struct {
	o        options
	random   *rand.Rand
	profiles *profiles
	pods     *placement.Revision
	dests    []string
	asks     map[api.Placement]placement.Ask
	inFlight []placement.Choice // the oldest first
	stop     func()

	chosen, known int // choices by default, and those based on known profiles
}

// newWorld makes a world whose nodes lend up to mostMilli of CPU each.
func newWorld(ctx context.Context, o options, mostMilli int64) (*world, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &world{o: o, random: rand.New(rand.NewPCG(o.seed, 0)), asks: map[api.Placement]placement.Ask{}}
	for _, name := range api.Placements {
		w.asks[name] = placement.Ask{Policy: placement.Named(name)}
	}
	program, err := stockWithinZones(o.nodes)
	if err != nil {
		cancel()
		return nil, err
	}
	w.asks[byProgram] = placement.Ask{Program: program}
	w.profiles = newProfiles(o, mostMilli)
	picture, err := placement.NewPicture(placement.PictureOptions{
		Profiles: w.profiles, Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: noop.NewMeterProvider(),
	})
	if err != nil {
		cancel()
		return nil, err
	}
	var running sync.WaitGroup
	running.Go(func() { picture.Run(ctx) })
	w.stop = func() {
		cancel()
		running.Wait()
	}
	slots := placement.NewSlots(picture, owners{})
	for i := range o.nodes {
		ip := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
		w.dests = append(w.dests, ip+":8012")
		slots.SetPod(revision, placement.Pod{Name: fmt.Sprintf("%s/thumb-00001-deployment-%06d", namespace, i), Node: nodeName(i), IPs: []string{ip}, Ready: true})
	}
	w.pods = slots.Of(revision, 1)
	if err := w.awaitPicture(ctx, picture); err != nil {
		w.stop()
		return nil, err
	}
	for range int(o.busy * float64(o.nodes)) {
		w.inFlight = append(w.inFlight, w.take(placement.Ask{Policy: placement.Random}))
	}
	return w, nil
}

// byProgram is the name of the PlacementPolicy here.
const byProgram = api.Placement("placement-policy")

// zones is the number of zones that the nodes are in. The program allows all but one.
const zones = 10

// stockWithinZones compiles a program that allows the nodes of some zones and, among those, takes the one that
// Knative picked or else the first: any time beyond stock's is the program's.
func stockWithinZones(nodes int) (*tapp.Program, error) {
	var all []tapp.Node
	for i := range nodes {
		all = append(all, tapp.Node{Name: nodeName(i), Reachable: true, Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprint("zone-", i%zones)}})
	}
	set := &v1alpha1.NodeSet{MatchExpressions: []v1alpha1.NodeRequirement{
		{Key: corev1.LabelTopologyZone, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"zone-0"}},
	}}
	spec := &v1alpha1.PlacementPolicySpec{Blocks: []v1alpha1.Block{{Workers: []v1alpha1.Worker{{Set: set}}}}}
	return tapp.Compile("bench", spec, tapp.NewNodes(all), tapp.Options{
		Policy: func(v1alpha1.Strategy) placement.Policy { return placement.Stock },
	})
}

// nodeName returns a name as long as those of nodes in clouds.
func nodeName(i int) string {
	return fmt.Sprintf("ip-10-0-%03d-%03d.eu-central-1.compute.internal", i>>8, i&255)
}

// awaitPicture waits until something is known of all nodes.
func (w *world) awaitPicture(ctx context.Context, picture *placement.Picture) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	retry := time.NewTicker(time.Millisecond)
	defer retry.Stop()
	views := make([]*placement.View, w.o.nodes)
	for i := range views {
		views[i] = picture.View(nodeName(i), namespace)
	}
	for i := 0; i < len(views); {
		if _, known := views[i].Coverage(api.SourceOwners, w.demand(), time.Now()); known {
			i++
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the picture knows nothing of node %s: %w", nodeName(i), ctx.Err())
		case <-retry.C:
		}
	}
	return nil
}

// demand returns the demand of a request that takes from 50 ms to 2 s.
func (w *world) demand() placement.Demand {
	return placement.Demand{
		Want:     api.Resources{CPUMilli: 100 * (1 + w.random.Int64N(20)), MemoryBytes: w.random.Int64N(4) * 64 << 20},
		Duration: 50*time.Millisecond + time.Duration(w.random.Int64N(int64(1950*time.Millisecond))),
	}
}

// take makes a choice as on a request's path, after Knative picked any pod.
func (w *world) take(ask placement.Ask) placement.Choice {
	ask.Demand, ask.Now = w.demand(), time.Now()
	return w.pods.Take(w.dests[w.random.IntN(len(w.dests))], ask)
}

// choose places requests, each of which ends the oldest, and returns how long each choice took, in microseconds.
func (w *world) choose(name api.Placement, n int) []float64 {
	times := make([]float64, n)
	w.makeRoom(n)
	began := time.Now()
	for i := range times {
		// Do not sleep: another process would get the core meanwhile, and its caches.
		for due := began.Add(time.Duration(float64(i) / w.o.rate * float64(time.Second))); time.Now().Before(due); {
		}
		dest, ask := w.dests[w.random.IntN(len(w.dests))], w.asks[name]
		ask.Demand = w.demand()
		ask.Now = time.Now()
		c := w.pods.Take(dest, ask)
		times[i] = microseconds(time.Since(ask.Now))
		w.endOldest(c)
		if name == api.PlacementDefault {
			w.chosen++
			if c.Debited {
				w.known++
			}
		}
	}
	return times
}

// allocations returns how often a choice allocates. The picture stands still meanwhile, but may still take in its
// last update. The least of a few tries is without that.
func (w *world) allocations(name api.Placement) float64 {
	const tries, choices = 3, 100
	w.profiles.gate <- struct{}{}
	defer func() { <-w.profiles.gate }()
	least := math.Inf(1)
	for range tries {
		w.makeRoom(choices)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range choices {
			w.endOldest(w.take(w.asks[name]))
		}
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.Mallocs-before.Mallocs)/choices)
	}
	return least
}

func (w *world) makeRoom(n int) {
	w.inFlight = append(make([]placement.Choice, 0, len(w.inFlight)+n), w.inFlight...)
}

// endOldest ends the oldest request, now that c has begun.
func (w *world) endOldest(c placement.Choice) {
	w.inFlight = append(w.inFlight, c)
	w.inFlight[0].Release()
	w.inFlight = w.inFlight[1:]
}

// covered returns the share of the choices by default that were based on what is known of nodes.
func (w *world) covered() float64 {
	if w.chosen == 0 {
		return 0
	}
	return float64(w.known) / float64(w.chosen)
}
