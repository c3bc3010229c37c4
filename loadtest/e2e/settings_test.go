//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

// A namespace's policy may not say what is of nodes; the definition cannot refuse that, for it does not see the namespace.
func TestOnlyTheClustersDefaultReservesCPU(t *testing.T) {
	objects := ctrlclient.NewDryRunClient(objectClient(t))
	for namespace, refused := range map[string]bool{metav1.NamespaceDefault: true, settings.Namespace: false} {
		policy := &v1alpha1.HarvestPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.HarvestPolicyName},
			Spec:       v1alpha1.HarvestPolicySpec{CPUReserve: resource.NewQuantity(1, resource.DecimalSI)},
		}
		err := objects.Create(t.Context(), policy)
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), "only HarvestPolicy libra-system/default, the cluster's, may have it") {
			t.Errorf("in namespace %s: %v", namespace, err)
		}
	}
}

// The API server refuses settings that no part would accept, and says what it wants. Nothing is
// changed here: all is a dry run.
func TestBadSettingsAreRefused(t *testing.T) {
	for _, tc := range []struct{ data, want string }{
		{`{"mode": "fully"}`, "mode must be observe, lend or full"},
		{`{"max-mode": "off"}`, "max-mode must be observe, lend or full"},
		{`{"min-loan": "300ms"}`, "these are spec.cpuReserve and spec.minLoan of HarvestPolicy libra-system/default now"},
		{`{"modes": "full"}`, "there is no such setting: modes"},
		{`{"max-mode": "observe", "platform-namespaces": "a, b"}`, ""},
	} {
		_, err := kube.CoreV1().ConfigMaps(settings.Namespace).Patch(t.Context(), settings.ConfigMap, types.MergePatchType,
			fmt.Appendf(nil, `{"data": %s}`, tc.data), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s is refused: %v", tc.data, err)
		case tc.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: got error %v, want one that says %q", tc.data, err, tc.want)
		}
	}
}
