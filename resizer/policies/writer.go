// Package policies writes into the status of each HarvestPolicy whether it was accepted and is in force, and
// how many functions and pods it applies to.
package policies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/rounds"
)

const (
	// every is how often the Writer looks whether a policy, or what bounds it, has changed.
	every = 10 * time.Second
	// recount is how often functions and pods are counted while no policy changes. Each node's agent hears of
	// every write, so there must not be one for each pod.
	recount = 10 * time.Minute

	writeTimeout = 5 * time.Second
	// writesPerSecond bounds what all policies together cost.
	writesPerSecond = 5
)

// Live has the settings in force, and the policies that they come from. A *settings.Live is one.
type Live interface {
	For(namespace string) settings.Settings
	HarvestPolicies() []*unstructured.Unstructured
}

// Writer writes the status of policies, and records Events on them. Only one writes at a time, the leader's.
type Writer struct {
	rounds.Rounds
	cached  client.Reader // of opted-in Revisions, and of Nodes
	kube    client.Client
	live    Live
	events  events.EventRecorder
	limiter *rate.Limiter

	seen      map[types.UID]seen
	countedAt time.Time
}

// seen is what a status depends on, except for functions and nodes, and what Events have said about it.
type seen struct {
	generation int64
	most       string // the highest mode that functions may have
	told       string
}

// NewWriter makes a Writer.
func NewWriter(clk clock.WithTicker, log logr.Logger, cached client.Reader, kube client.Client, live Live, recorder events.EventRecorder) *Writer {
	w := &Writer{
		cached: cached, kube: kube, live: live, events: recorder,
		limiter: rate.NewLimiter(writesPerSecond, writesPerSecond), seen: map[types.UID]seen{},
	}
	w.Rounds = rounds.Rounds{Clock: clk, Log: log, Every: every, What: "the conditions of HarvestPolicies", Round: w.round}
	return w
}

// round writes the statuses that have changed.
func (w *Writer) round(ctx context.Context) error {
	all := w.live.HarvestPolicies()
	// In one order, so that the same failures read the same.
	slices.SortFunc(all, func(a, b *unstructured.Unstructured) int { return strings.Compare(a.GetNamespace(), b.GetNamespace()) })
	now := w.Clock.Now()
	seen := make(map[types.UID]seen, len(all))
	same := len(all) == len(w.seen)
	for _, object := range all {
		of := w.seen[object.GetUID()]
		most := string(w.live.For(object.GetNamespace()).MaxMode)
		same = same && of.generation == object.GetGeneration() && of.most == most
		of.generation, of.most = object.GetGeneration(), most
		seen[object.GetUID()] = of
	}
	w.seen = seen
	// 1. Do nothing if nothing has changed, except for counting again from time to time.
	if same && !w.Failing() && now.Sub(w.countedAt) < recount {
		return nil
	}

	// 2. Find what the policies apply to.
	found, err := w.look(ctx, all)
	if err != nil {
		return err
	}
	w.countedAt = now

	// 3. Write it. With many policies that takes longer than a round, so waiting is no failure.
	var errs []error
	for _, object := range all {
		if err := w.write(ctx, object, found); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (w *Writer) write(ctx context.Context, object *unstructured.Unstructured, found *found) error {
	policy, refused := settings.PolicyOf(object)
	status := statusOf(&policy, refused, found, w.live.For(object.GetNamespace()), w.Clock.Now())
	w.tell(object, policy.Status, status)
	if equality.Semantic.DeepEqual(policy.Status, status) {
		return nil
	}
	if err := w.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("waiting to write the status of HarvestPolicy %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	// The UID keeps the patch from an object that was made anew since: that one has another status.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.GetUID()}, "status": status})
	if err != nil {
		return fmt.Errorf("encoding the status of HarvestPolicy %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	to := &v1alpha1.HarvestPolicy{}
	to.Namespace, to.Name = object.GetNamespace(), object.GetName()
	if err := w.kube.Status().Patch(ctx, to, client.RawPatch(types.MergePatchType, patch)); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("writing the status of HarvestPolicy %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return nil
}
