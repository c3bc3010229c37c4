package tapp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/once"
)

// Reasons of Events on a placement policy.
const (
	// An edit was refused, and what was in force before stays in force. The note says what is wrong with the edit.
	eventRefused = "Refused"
	// A generation of the policy is in force after one that was refused.
	eventInForce = "InForce"
	// No node matches some of the policy's blocks. The note names them.
	eventUnmatched = "BlocksMatchNoNode"
)

const (
	requestTimeout = 5 * time.Second
	// scatter is the time over which activators, which all see a change at once, spread their writes.
	scatter = 500 * time.Millisecond
	// longestRetry is the longest wait before a status that could not be written is written again.
	longestRetry = time.Minute
	// recheck is the least time until the reporter looks again for the activators that refused a generation or have not
	// read it: by then they may be gone.
	recheck = time.Minute
	// inspected is how many other activators each write looks for. Those that are gone leave the status.
	inspected = 4
)

// reporter writes into the status of policies what became of them on this activator. It leaves alone what other
// activators have written about themselves, so that activators that disagree do not undo each other's writes forever.
type reporter struct {
	logger    *zap.SugaredLogger
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	events    record.EventRecorder
	activator types.NamespacedName
	object    func(key) (*unstructured.Unstructured, bool)
	queue     workqueue.TypedRateLimitingInterface[key]
	warned    once.Set[string]

	mu      sync.Mutex
	reports map[key]outcome // the latest, written yet or not
	written map[key]outcome
}

// outcome is what became of a policy.
type outcome struct {
	uid                types.UID
	observed, compiled int64
	refused            string
	unmatched          []int32
}

func (o outcome) equal(other outcome) bool {
	return o.uid == other.uid && o.observed == other.observed && o.compiled == other.compiled && o.refused == other.refused && slices.Equal(o.unmatched, other.unmatched)
}

func newReporter(o PoliciesOptions, object func(key) (*unstructured.Unstructured, bool)) *reporter {
	return &reporter{
		logger: o.Logger, kube: o.Kube, dynamic: o.Dynamic, events: o.Events, activator: o.Activator, object: object,
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[key](scatter, longestRetry)),
		reports: map[key]outcome{}, written: map[key]outcome{},
	}
}

// report has what is known about the policies written soon.
func (r *reporter) report(known map[key]*policy) {
	reports := make(map[key]outcome, len(known))
	for of, k := range known {
		o := outcome{uid: k.uid, observed: k.generation, compiled: k.compiled}
		if k.refused != nil {
			o.refused = k.refused.Error()
		}
		if k.program != nil {
			o.unmatched = k.program.Unmatched()
		}
		reports[of] = o
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = reports
	for of := range r.written {
		if _, ok := reports[of]; !ok {
			delete(r.written, of)
		}
	}
	for of, o := range reports {
		if was, ok := r.written[of]; !ok || !o.equal(was) {
			r.queue.AddAfter(of, rand.N(scatter))
		}
	}
}

func (r *reporter) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		<-ctx.Done()
		r.queue.ShutDown()
	})
	for {
		of, stopped := r.queue.Get()
		if stopped {
			return
		}
		r.writeOrRetry(ctx, of)
		r.queue.Done(of)
	}
}

func (r *reporter) writeOrRetry(ctx context.Context, of key) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r.mu.Lock()
	o, ok := r.reports[of]
	r.mu.Unlock()
	obj, exists := r.object(of)
	// A policy that was recreated is reported when it has been read.
	if !ok || !exists || obj.GetUID() != o.uid {
		r.queue.Forget(of)
		return
	}
	switch agreed, err := r.write(ctx, of, obj.DeepCopy(), o); {
	case err == nil:
		r.queue.Forget(of)
		if !agreed {
			r.queue.AddAfter(of, recheck+rand.N(recheck))
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.written[of] = o
		if now, ok := r.reports[of]; ok && !o.equal(now) {
			r.queue.Add(of) // it was reported while this was being written, and compared with what was written before
		}
		return
	case apierrors.IsConflict(err):
	case r.warned.First(err.Error()):
		r.logger.Warnw("Cannot write the status of a placement policy; requests are not affected. The activator needs update on the status. This is logged once.",
			"policy", of.String(), zap.Error(err))
	}
	r.queue.AddRateLimited(of)
}

// write writes an outcome, and says whether all activators in the status have come to the same one.
func (r *reporter) write(ctx context.Context, of key, obj *unstructured.Unstructured, o outcome) (agreed bool, err error) {
	var status v1alpha1.PlacementPolicyStatus
	if is, ok := obj.Object["status"].(map[string]any); ok {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(is, &status); err != nil {
			return false, fmt.Errorf("reading the status: %w", err)
		}
	}
	was := status.DeepCopy()
	r.enter(ctx, &status, o)
	agreed = !slices.ContainsFunc(status.Activators, func(a v1alpha1.ActivatorStatus) bool {
		return a.ObservedGeneration != o.observed || a.CompiledGeneration != o.compiled
	})
	if equality.Semantic.DeepEqual(was, &status) {
		return agreed, nil
	}
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return false, fmt.Errorf("writing the status: %w", err)
	}
	obj.Object["status"] = is
	var client dynamic.ResourceInterface = r.dynamic.Resource(ofCluster)
	if of.namespace != "" {
		client = r.dynamic.Resource(namespaced).Namespace(of.namespace)
	}
	if _, err := client.UpdateStatus(ctx, obj, metav1.UpdateOptions{}); err != nil {
		return false, err
	}
	r.tell(obj, was, &status)
	return agreed, nil
}

// enter puts an outcome into a status.
func (r *reporter) enter(ctx context.Context, status *v1alpha1.PlacementPolicyStatus, o outcome) {
	own := v1alpha1.ActivatorStatus{Name: r.activator.Name, ObservedGeneration: o.observed, CompiledGeneration: o.compiled}
	status.Activators = slices.DeleteFunc(status.Activators, func(a v1alpha1.ActivatorStatus) bool { return a.Name == own.Name })
	status.Activators = r.present(ctx, status.Activators, o.observed)
	status.Activators = append(status.Activators, own)
	slices.SortFunc(status.Activators, func(a, b v1alpha1.ActivatorStatus) int { return strings.Compare(a.Name, b.Name) })
	if o.compiled != 0 {
		status.UnmatchedBlocks = o.unmatched
	}
	accepted := metav1.Condition{
		Type: v1alpha1.Accepted, ObservedGeneration: o.observed,
		Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonInForce, Message: "The policy is in force.",
	}
	if o.refused != "" {
		accepted.Status, accepted.Reason = metav1.ConditionFalse, v1alpha1.ReasonRefused
		stays := inForce(status.Activators)
		accepted.Message = shortened(o.refused, api.MaxNote-len(stays)-2) + ". " + stays
	}
	last := meta.FindStatusCondition(status.Conditions, v1alpha1.Accepted)
	switch {
	case last == nil:
	case last.ObservedGeneration > o.observed:
		return
	case o.refused == "" && last.Status == metav1.ConditionFalse && last.ObservedGeneration == o.observed && refusedBy(status.Activators, o.observed):
		// One activator refuses it, perhaps one of another release. The condition must keep saying so.
		return
	}
	meta.SetStatusCondition(&status.Conditions, accepted)
}

// inForce says what the activators have in force of a policy that was refused. It says the same whichever of them asks.
func inForce(activators []v1alpha1.ActivatorStatus) string {
	generations := sets.New[int64]()
	for _, a := range activators {
		generations.Insert(a.CompiledGeneration)
	}
	switch of := sets.List(generations); {
	case len(of) > 1:
		return fmt.Sprintf("Activators have different generations in force, %v, where 0 is none: see status.activators.", of)
	case of[0] == 0:
		return "No generation of this policy is in force: its functions are placed as if it did not exist."
	default:
		return fmt.Sprintf("Generation %d stays in force.", of[0])
	}
}

// refusedBy says whether any activator has refused a generation.
func refusedBy(activators []v1alpha1.ActivatorStatus, generation int64) bool {
	return slices.ContainsFunc(activators, func(a v1alpha1.ActivatorStatus) bool {
		return a.ObservedGeneration == generation && a.CompiledGeneration != generation
	})
}

// present drops activators whose pods are gone. It looks for only some of them, beginning with those that lag behind.
func (r *reporter) present(ctx context.Context, activators []v1alpha1.ActivatorStatus, generation int64) []v1alpha1.ActivatorStatus {
	suspects := slices.Clone(activators)
	rand.Shuffle(len(suspects), func(i, j int) { suspects[i], suspects[j] = suspects[j], suspects[i] })
	slices.SortStableFunc(suspects, func(a, b v1alpha1.ActivatorStatus) int {
		return lag(a, generation) - lag(b, generation)
	})
	for _, s := range suspects[:min(len(suspects), inspected)] {
		if _, err := r.kube.CoreV1().Pods(r.activator.Namespace).Get(ctx, s.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			activators = slices.DeleteFunc(activators, func(a v1alpha1.ActivatorStatus) bool { return a.Name == s.Name })
		}
	}
	return activators
}

// lag returns 0 for an activator that has not read a generation, and 1 for others.
func lag(a v1alpha1.ActivatorStatus, generation int64) int {
	if a.ObservedGeneration < generation {
		return 0
	}
	return 1
}

// tell records an Event about what has changed. Only the activator that wrote the change records it.
func (r *reporter) tell(obj *unstructured.Unstructured, was, is *v1alpha1.PlacementPolicyStatus) {
	if r.events == nil {
		return
	}
	before, after := meta.FindStatusCondition(was.Conditions, v1alpha1.Accepted), meta.FindStatusCondition(is.Conditions, v1alpha1.Accepted)
	changed := before == nil || after == nil || before.Status != after.Status || before.ObservedGeneration != after.ObservedGeneration
	switch {
	case after == nil || !changed:
	case after.Status == metav1.ConditionFalse:
		r.events.Event(obj, corev1.EventTypeWarning, eventRefused, after.Message)
	case before != nil && before.Status == metav1.ConditionFalse:
		r.events.Eventf(obj, corev1.EventTypeNormal, eventInForce, "Generation %d is in force.", after.ObservedGeneration)
	}
	if len(is.UnmatchedBlocks) > 0 && !slices.Equal(was.UnmatchedBlocks, is.UnmatchedBlocks) {
		r.events.Eventf(obj, corev1.EventTypeWarning, eventUnmatched,
			"No node matches blocks %v of spec.blocks (the first is 0): want names or labels of existing nodes, and existing zones.", is.UnmatchedBlocks)
	}
}
