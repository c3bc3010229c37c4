package kubectl

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"libra.dev/libra/pkg/api/v1alpha1"
)

// A read that begins shortly before the end is finished: client-go refuses one that it takes to have no time left.
func TestWatchEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report := &v1alpha1.FunctionReport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: v1alpha1.FunctionReportName}}
		report.Status = v1alpha1.FunctionReportStatus{Updated: metav1.Now(), Functions: []v1alpha1.FunctionStatus{function("thumb", "full", 40)}}
		kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(report).WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if ends, ok := ctx.Deadline(); ok && time.Until(ends) < 10*time.Second {
					return errors.New("client rate limiter Wait returned an error")
				}
				time.Sleep(time.Second)
				return c.List(ctx, list, opts...)
			},
		}).Build()
		var out bytes.Buffer
		o := &options{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: io.Discard}}
		f := topFlags{output: output{outputTable}, watch: true, interval: 10 * time.Second, period: 25 * time.Second}
		began := time.Now()
		err := o.top(t.Context(), f, kube, "shop")
		if got := strings.Count(out.String(), "thumb"); err != nil || got != 3 || time.Since(began) != f.period {
			t.Errorf("it ended with %v after %v, and printed %d times, want 3 times in %v:\n%s", err, time.Since(began), got, f.period, out.String())
		}
	})
}
