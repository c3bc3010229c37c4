package forward

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"knative.dev/serving/pkg/networking"
)

// doubtedFor is how long an activator gets no requests after one that was passed to it has failed.
const doubtedFor = 10 * time.Second

// Activators holds the other activators, by zone. It is safe for concurrent use.
type Activators struct {
	self string
	most int

	mu    sync.Mutex
	peers map[string]*peer // by address
	zones map[string][]*peer
}

// peer is another activator.
type peer struct {
	ip, zone string
	of       *Activators
	// outstanding counts the requests passed to it that are in flight. It gets none before doubted.
	outstanding int
	doubted     time.Time
}

// NewActivators returns Activators that hold none yet. self is the address of this activator, which is never one of the others.
// most is how many requests each of them may have in flight from this one: as many as there can be connections to keep.
func NewActivators(self string, most int) *Activators {
	return &Activators{self: self, most: most, peers: map[string]*peer{}, zones: map[string][]*peer{}}
}

// set replaces the others with those in zoneOf, which maps addresses to zones. An activator that stays keeps its state.
func (a *Activators) set(zoneOf map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	peers, zones := make(map[string]*peer, len(zoneOf)), map[string][]*peer{}
	for ip, zone := range zoneOf {
		p := a.peers[ip]
		// The same address in another zone is another activator.
		if p == nil || p.zone != zone {
			p = &peer{ip: ip, zone: zone, of: a}
		}
		peers[ip] = p
		zones[zone] = append(zones[zone], p)
	}
	a.peers, a.zones = peers, zones
}

// reachable reports whether a zone has an activator that takes a request.
func (a *Activators) reachable(zone string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.zones[zone], func(p *peer) bool { return p.takes(now) })
}

// take returns the activator of a zone that has the fewest requests in flight from this one, at random among equals, or nil if
// none takes a request. The caller must release it.
func (a *Activators) take(zone string, now time.Time) *peer {
	a.mu.Lock()
	defer a.mu.Unlock()
	var best *peer
	ties := 0
	for _, p := range a.zones[zone] {
		switch {
		case !p.takes(now):
		case best == nil || p.outstanding < best.outstanding:
			best, ties = p, 1
		case p.outstanding == best.outstanding:
			if ties++; rand.IntN(ties) == 0 {
				best = p
			}
		}
	}
	if best != nil {
		best.outstanding++
	}
	return best
}

// takes must be called with mu held.
func (p *peer) takes(now time.Time) bool {
	return p.outstanding < p.of.most && !now.Before(p.doubted)
}

func (p *peer) release() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.outstanding--
}

func (a *Activators) doubt(p *peer, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.doubted = now.Add(doubtedFor)
}

// Follow watches the endpoints of the activators' Service in the background until ctx is done. Without the permission to watch
// them, no request is passed on.
func (a *Activators) Follow(ctx context.Context, kube kubernetes.Interface, namespace string, logger *zap.SugaredLogger) error {
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = discoveryv1.LabelServiceName + "=" + networking.ActivatorServiceName
	}))
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	update := func() { a.set(a.in(informer.GetStore().List())) }
	var once sync.Once
	err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		once.Do(func() {
			logger.Warnw("Cannot watch the activators' endpoints, so requests are passed on only to activators that are already known; the activator needs get, list and watch on endpointslices. This is logged once.", zap.Error(err))
		})
	})
	if err != nil {
		return fmt.Errorf("following activators: %w", err)
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { update() },
		UpdateFunc: func(any, any) { update() },
		DeleteFunc: func(any) { update() },
	}); err != nil {
		return fmt.Errorf("following activators: %w", err)
	}
	go informer.RunWithContext(ctx)
	return nil
}

// in returns the zones of the other activators in endpoint slices, by their addresses in the family of this one's.
func (a *Activators) in(slices []any) map[string]string {
	zoneOf := map[string]string{}
	for _, obj := range slices {
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || slice.AddressType != a.family() {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			// Only the first address of an endpoint means anything.
			if len(e.Addresses) == 0 || e.Addresses[0] == a.self || e.Zone == nil || *e.Zone == "" || e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			zoneOf[e.Addresses[0]] = *e.Zone
		}
	}
	return zoneOf
}

func (a *Activators) family() discoveryv1.AddressType {
	if ip, err := netip.ParseAddr(a.self); err == nil && ip.Is6() {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}
