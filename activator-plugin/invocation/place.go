package invocation

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	knativequeue "knative.dev/serving/pkg/queue"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
)

// byProgram is the attribute "policy" for choices that a PlacementPolicy made.
const byProgram = "placement_policy"

// placer chooses the pods that requests go to.
type placer struct {
	slots    *placement.Slots
	programs placement.Programs
	policies map[api.Placement]placement.Policy
}

func newPlacer(o Options) (*placer, error) {
	p := &placer{slots: placement.NewSlots(o.Views, o.Settings), programs: o.Programs, policies: placement.AllNamed()}
	if o.Pods != nil {
		if err := o.Pods.follow(p.slots); err != nil {
			return nil, fmt.Errorf("following pods: %w", err)
		}
	}
	return p, nil
}

// Slots returns the pods that requests may go to.
func (m *Manager) Slots() *placement.Slots { return m.placer.slots }

// place chooses the pod for a request that Knative sends to dest.
func (m *Manager) place(ctx context.Context, req *request, revID types.NamespacedName, dest string, isClusterIP bool) placement.Choice {
	concurrency := int(req.rev.Spec.GetContainerConcurrency())
	if isClusterIP || concurrency == 0 {
		return placement.Choice{Dest: dest}
	}
	pods := m.placer.slots.Of(revID, concurrency)
	ask, by := m.ask(ctx, req, revID, pods)
	// All requests are counted, because the choice of a pod has to know of the others.
	placed := pods.Take(dest, ask)
	if placed.Over {
		m.metrics.onOver(revID)
	}
	if placed.Outcome == placement.Refused {
		req.refusedBy = ask.Program.RefusedBy(revID.Namespace)
	}
	if by != "" {
		m.metrics.onPlaced(by, placed.Outcome, m.clock.Since(ask.Now))
		tracePlaced(ctx, by, placed)
	}
	return placed
}

// ask returns how to choose the request's pod, and by what: "" where Knative decides. It never blocks: while nothing is known of a
// function, its requests want nothing.
func (m *Manager) ask(ctx context.Context, req *request, revID types.NamespacedName, pods *placement.Revision) (ask placement.Ask, by string) {
	if !m.places(req.rev) {
		return ask, ""
	}
	ask.Program = m.program(req.rev)
	name := m.settings.Placement()
	switch {
	case ask.Program != nil:
		by = byProgram
		known := routedFrom(ctx)
		ask.Order, ask.Forwarded = known.order, known.forwarded
	case name == api.PlacementStock || !pods.HasChoice():
		return ask, ""
	default:
		ask.Policy, by = m.placer.policies[name], string(name)
	}
	ask.Now = m.clock.Now()
	if p, known := m.predictor.Known(ctx, revID, req.size); known && !req.upgrade {
		owed := allocationOf(req.rev.Spec.GetContainer())
		set, _ := termsOf(nil, m.settings.For(revID.Namespace)) // its want does not depend on what it keeps
		could := classify(owed, set, p, int(req.rev.Spec.GetContainerConcurrency()))
		ask.Demand = demand(owed, could, p)
	}
	return ask, by
}

// places reports whether Libra chooses the pods of a revision's requests at all.
func (m *Manager) places(rev *v1.Revision) bool {
	return m.settings.For(rev.Namespace).ModeOf(rev.Annotations) == api.ModeFull && !api.IsCopy(rev.Labels)
}

// program returns the program of a revision's policy, or nil. It is nil until pods have been read, because a program would refuse
// every request before.
func (m *Manager) program(rev *v1.Revision) placement.Program {
	if m.placer.programs == nil || !m.pods.HasSynced() {
		return nil
	}
	return m.placer.programs.Of(rev.Namespace, rev.Labels[api.PlacementLabel])
}

// demand returns what an invocation would borrow, for how long, and what it uses of its own CPU beside that.
func demand(owed allocation, could volumes, p predict.Prediction) placement.Demand {
	return placement.Demand{Want: could.want, Duration: lasts(owed, p), OwnCPUMilli: min(p.Demand.CPUMilli, owed.limit.CPUMilli)}
}

// refusedError says that no pod is where a placement policy allows. Knative's handler answers it with 503.
type refusedError struct{ policy string }

func (e refusedError) Error() string {
	return fmt.Sprintf("placement: no node that %s allows has a pod of the function with a free slot", e.policy)
}

func (refusedError) Is(target error) bool { return target == knativequeue.ErrRequestQueueFull }

// refuse returns the error for a request without a pod, and puts the reason in a header of its response.
func refuse(req *request) error {
	err := refusedError{req.refusedBy}
	req.response.Header().Set(api.ReasonHeader, err.Error())
	return err
}

// tracePlaced records where the request goes, and why, on the span in ctx, which is that of the wait for a slot.
func tracePlaced(ctx context.Context, by string, placed placement.Choice) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(
		attribute.String("libra.placement.policy", by),
		attribute.String("libra.placement.outcome", string(placed.Outcome)),
		attribute.Int("libra.placement.candidates", placed.Candidates),
		attribute.Bool("libra.placement.moved", placed.Outcome == placement.Moved),
	)
	if placed.Node != "" {
		span.SetAttributes(attribute.String("libra.placement.node", placed.Node))
	}
	if placed.Covered {
		span.SetAttributes(attribute.Float64("libra.placement.coverage", placed.Coverage))
	}
	if by == byProgram {
		span.SetAttributes(attribute.Int("libra.placement.block", placed.Block))
	}
}
