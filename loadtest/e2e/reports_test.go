//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api/v1alpha1"
)

// reportedWithin is longer than the parts take to send what they counted, and the resizer to write it.
const reportedWithin = 2 * time.Minute

// The figures that `kubectl libra status` shows need no Prometheus, and come from the requests alone.
func TestAReportTellsHowFunctionsFare(t *testing.T) {
	ctx := t.Context()
	objects := objectClient(t)
	began := time.Now()
	running := startLoad(ctx)
	defer running.stop(t)
	eventually(t, reportedWithin, "FunctionReport of the functions under load", func() error {
		var report v1alpha1.FunctionReport
		if err := objects.Get(ctx, kubeclient.ObjectKey{Namespace: functionsNamespace, Name: v1alpha1.FunctionReportName}, &report); err != nil {
			return err
		}
		if report.Status.Updated.Time.Before(began) {
			return fmt.Errorf("it is of %v", report.Status.Updated)
		}
		for service, volume := range map[string]func(*v1alpha1.FunctionStatus) int64{
			// Memory, because it uses as much on any machine: its CPU peak is higher on a slow or
			// shared one.
			"uploader":    func(f *v1alpha1.FunctionStatus) int64 { return f.CouldLend.Memory().Value() },
			"compression": func(f *v1alpha1.FunctionStatus) int64 { return f.WouldBorrow.Cpu().MilliValue() },
		} {
			i := slices.IndexFunc(report.Status.Functions, func(f v1alpha1.FunctionStatus) bool { return f.Service == service })
			if i < 0 {
				return fmt.Errorf("it has nothing of %s: %+v", service, report.Status.Total)
			}
			f := &report.Status.Functions[i]
			if f.Requests == 0 || f.Learning != v1alpha1.LearningDone || volume(f) == 0 {
				return fmt.Errorf("it has of %s: %+v", service, *f)
			}
		}
		return nil
	})
}
