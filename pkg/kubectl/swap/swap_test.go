package swap_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"libra.dev/libra/pkg/kubectl/swap"
)

func TestInstallAndRemoveLeaveTheDeploymentAsItWas(t *testing.T) {
	p := startPlane(t)
	p.rollOut("")
	p.do(p.swap.Remove(t.Context())) // there is nothing to put back
	before := p.found()
	extend := func(pod *applycorev1.PodSpecApplyConfiguration) {
		pod.Containers[0].WithEnv(applycorev1.EnvVar().WithName("LIBRA_PREDICTOR_URL").WithValue("http://predictor.test"))
	}
	for range 2 {
		p.do(p.swap.Install(t.Context(), libra, extend))
		p.runs(libra, stock)
	}
	p.do(p.swap.Install(t.Context(), libra2, nil))
	p.runs(libra2, stock)
	for range 2 {
		p.do(p.swap.Remove(t.Context()))
		p.runs(stock, "")
	}
	if diff := cmp.Diff(before, p.found()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// An upgrade of Knative puts its own activator there. A second install writes down that one.
func TestInstallAfterAnUpgradeOfKnative(t *testing.T) {
	p := startPlane(t)
	p.rollOut("")
	p.do(p.swap.Install(t.Context(), libra, nil))
	p.applyKnative(stock2, "kubectl")
	p.runs(stock2, stock)
	p.do(p.swap.Install(t.Context(), libra, nil))
	p.runs(libra, stock2)
	p.do(p.swap.Remove(t.Context()))
	p.runs(stock2, "")
}

// A removal after such an upgrade keeps the image that came with it.
func TestRemoveAfterAnUpgradeOfKnative(t *testing.T) {
	p := startPlane(t)
	p.rollOut("")
	before := p.found()
	p.do(p.swap.Install(t.Context(), libra, nil))
	p.applyKnative(stock2, "kubectl")
	p.do(p.swap.Remove(t.Context()))
	p.runs(stock2, "")
	p.applyKnative(stock, "kubectl")
	if diff := cmp.Diff(before, p.found()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func TestWhoeverAppliesKnativeAfterARemovalMeetsNoConflict(t *testing.T) {
	p := startPlane(t)
	p.rollOut("")
	p.do(p.swap.Install(t.Context(), libra, nil))
	p.do(p.swap.Remove(t.Context()))
	for _, e := range p.deployment().ManagedFields {
		if e.Manager == swap.FieldManager {
			t.Errorf("Libra still manages %s", e.FieldsV1)
		}
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	p := startPlane(t)
	p.rollOut("")
	before := p.found()
	p.swap.DryRun = true
	p.do(p.swap.Install(t.Context(), libra, nil))
	if diff := cmp.Diff(before, p.found()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if !strings.Contains(p.out.String(), libra) {
		t.Errorf("it does not say what it would do, but %q", p.out)
	}
}

func TestAnActivatorThatDoesNotStartIsPutBack(t *testing.T) {
	p := startPlane(t)
	p.rollOut(libra)
	before := p.found()
	p.waitingPod(libra, "ImagePullBackOff", "no such manifest")
	err := p.swap.Install(t.Context(), libra, nil)
	if err == nil || !strings.Contains(err.Error(), "pod activator-new waits: ImagePullBackOff no such manifest") || !strings.Contains(err.Error(), stock+" is back") {
		t.Errorf("it says %v, want the reason of the pod, and that the stock image is back", err)
	}
	if diff := cmp.Diff(before, p.found()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// The previous image is then Libra's own.
func TestANewActivatorThatDoesNotStartMakesWayForTheOneBefore(t *testing.T) {
	p := startPlane(t)
	p.rollOut(libra2)
	p.do(p.swap.Install(t.Context(), libra, nil))
	p.waitingPod(libra2, "CrashLoopBackOff", "")
	if err := p.swap.Install(t.Context(), libra2, nil); err == nil {
		t.Error("it does not fail")
	}
	p.runs(libra, stock)
}

func TestInstallRefuses(t *testing.T) {
	p := startPlane(t)
	p.rollOut("")
	for name, c := range map[string]struct {
		with func(d *appsv1.Deployment)
		want []string
	}{
		"an older Knative": {
			func(d *appsv1.Deployment) { d.Labels["app.kubernetes.io/version"] = "1.21.2" },
			[]string{`"1.21.2"`, swap.Supported.String()},
		},
		"a Knative without a version": {
			func(d *appsv1.Deployment) { delete(d.Labels, "app.kubernetes.io/version") },
			[]string{"app.kubernetes.io/version"},
		},
		"no container of that name": {
			func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Name = "other" },
			[]string{"no container activator"},
		},
		"Libra's image and no stock image written down": {
			func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = libra2 },
			[]string{libra2, swap.StockImageAnnotation},
		},
		"the Knative operator": {
			func(d *appsv1.Deployment) {
				d.OwnerReferences = []metav1.OwnerReference{{APIVersion: "operator.knative.dev/v1beta1", Kind: "KnativeServing", Name: "knative-serving", UID: "1"}}
			},
			[]string{"the Knative operator", "spec:\n  registry:\n    override:\n      activator: " + libra + "\n"},
		},
		"Argo CD": {
			func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{"argocd.argoproj.io/tracking-id": "knative:apps/Deployment:knative-serving/activator"}
			},
			[]string{"Argo CD", "images:\n- name: registry.test/knative/activator\n  newName: registry.test:5000/libra-activator\n  newTag: 1\n"},
		},
		"Flux": {
			func(d *appsv1.Deployment) { d.Labels["kustomize.toolkit.fluxcd.io/name"] = "knative" },
			[]string{"Flux", "spec:\n  images:\n  - name: registry.test/knative/activator\n    newName: registry.test:5000/libra-activator\n    newTag: 1\n"},
		},
		"Flux with Helm": {
			func(d *appsv1.Deployment) { d.Labels["helm.toolkit.fluxcd.io/name"] = "knative" },
			[]string{"HelmRelease", "  postRenderers:\n  - kustomize:\n      images:\n      - name: "},
		},
	} {
		p.change(c.with)
		before := p.deployment()
		err := p.swap.Install(t.Context(), libra, nil)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: it says %v, want %q", name, err, want)
			}
		}
		after := p.deployment()
		if diff := cmp.Diff(before.Spec, after.Spec) + cmp.Diff(before.Annotations, after.Annotations); diff != "" {
			t.Errorf("%s (-before +after):\n%s", name, diff)
		}
		p.do(p.kube.Delete(t.Context(), p.deployment()))
		p.applyKnative(stock, "kubectl")
	}
}

func TestInstallRefusesWithoutTheActivatorsRights(t *testing.T) {
	p := startPlane(t)
	p.rollOut("")
	p.do(p.kube.Delete(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "libra-activator", Namespace: "libra-system"}}))
	if err := p.swap.Install(t.Context(), libra, nil); err == nil || !strings.Contains(err.Error(), "libra-activator.yaml") {
		t.Errorf("it says %v, want what to apply", err)
	}
	p.runs(stock, "")
}

// The operator runs Libra's image once it is configured to.
func TestInstallAndRemoveLeaveItToTheOperator(t *testing.T) {
	p := startPlane(t)
	p.rollOut("")
	p.change(func(d *appsv1.Deployment) {
		d.OwnerReferences = []metav1.OwnerReference{{APIVersion: "operator.knative.dev/v1beta1", Kind: "KnativeServing", Name: "knative-serving", UID: "1"}}
		d.Spec.Template.Spec.Containers[0].Image = libra
	})
	p.do(p.swap.Install(t.Context(), libra, nil))
	p.runs(libra, "")
	if err := p.swap.Remove(t.Context()); err == nil || !strings.Contains(err.Error(), "activator: "+libra) {
		t.Errorf("it says %v, want what to take out", err)
	}
	p.runs(libra, "")
}
