package uninstall

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// scheduler is what pods name that Libra's scheduler is to place.
	scheduler = "libra-scheduler"

	// namedMost bounds how many Revisions an error names.
	namedMost = 10
)

// refuseScheduled is an error while functions name Libra's scheduler, which goes with its namespace: no pod that they
// scale up to would be placed any more.
func (u Uninstall) refuseScheduled(ctx context.Context) error {
	named, err := u.scheduled(ctx)
	if err != nil || len(named) == 0 {
		return err
	}
	of := strings.Join(named[:min(namedMost, len(named))], ", ")
	if more := len(named) - namedMost; more > 0 {
		of += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("nothing was changed: the scheduler %s goes with Libra, and new pods of %d Revisions that name it would wait for it for ever: %s. "+
		"Take schedulerName out of the templates of their Services, and run this again when no traffic goes to these Revisions any more", scheduler, len(named), of)
}

// scheduled are the Revisions that name Libra's scheduler. They need not have opted in; those that are not routed get
// no new pods in any case.
func (u Uninstall) scheduled(ctx context.Context) ([]string, error) {
	routed, err := labels.NewRequirement(serving.RoutingStateLabelKey, selection.NotIn, []string{string(servingv1.RoutingStateReserve)})
	if err != nil {
		return nil, err
	}
	var revisions servingv1.RevisionList
	if err := u.Client.List(ctx, &revisions, client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*routed)}); err != nil {
		if meta.IsNoMatchError(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("listing the Revisions that name the scheduler %s: %w", scheduler, err)
	}
	var named []string
	for _, r := range revisions.Items {
		if r.Spec.SchedulerName == scheduler {
			named = append(named, r.Namespace+"/"+r.Name)
		}
	}
	return named, nil
}
