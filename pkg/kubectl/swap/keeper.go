package swap

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
)

// keeper is who keeps the Deployment as it is written down elsewhere, and would put back what is changed here.
type keeper struct {
	name string
	// stanza is what makes it run an image in the place of another.
	stanza func(from, to string) string
	into   string // where that goes
}

var keepers = []struct {
	keeper
	keeps func(d *appsv1.Deployment) bool
}{
	{
		keeper{"the Knative operator", operatorStanza, "the KnativeServing"},
		func(d *appsv1.Deployment) bool {
			for _, o := range d.OwnerReferences {
				if o.Kind == "KnativeServing" && strings.HasPrefix(o.APIVersion, "operator.knative.dev/") {
					return true
				}
			}
			return false
		},
	},
	{
		keeper{"Flux (a HelmRelease)", fluxHelmStanza, "the HelmRelease"},
		func(d *appsv1.Deployment) bool {
			return hasKey(d.Labels, "helm.toolkit.fluxcd.io/name") || managed(d, "helm-controller")
		},
	},
	{
		keeper{"Flux (a Kustomization)", fluxStanza, "the Kustomization of kustomize.toolkit.fluxcd.io"},
		func(d *appsv1.Deployment) bool {
			return hasKey(d.Labels, "kustomize.toolkit.fluxcd.io/name") || managed(d, "kustomize-controller")
		},
	},
	{
		keeper{"Argo CD", kustomizeStanza, "the kustomization.yaml that its Application applies"},
		func(d *appsv1.Deployment) bool {
			return hasKey(d.Annotations, "argocd.argoproj.io/tracking-id") || hasKey(d.Labels, "argocd.argoproj.io/instance") ||
				managed(d, "argocd-controller") || managed(d, "argocd-application-controller")
		},
	},
}

// keeperOf is who keeps the Deployment; nil where nobody is known to.
func keeperOf(d *appsv1.Deployment) *keeper {
	for _, k := range keepers {
		if k.keeps(d) {
			return &k.keeper
		}
	}
	return nil
}

// refusal says how to have the keeper run Libra's activator.
func (k *keeper) refusal(d *appsv1.Deployment, image string) error {
	current, err := imageOf(d)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s keeps %s and would put its image back, so that nothing was changed. Add this to %s:\n\n%s",
		k.name, where, k.into, k.stanza(current, image))
}

// removal says how to have the keeper run the stock activator.
func (k *keeper) removal(d *appsv1.Deployment, current string) error {
	if !isLibras(d, current) {
		return nil
	}
	return fmt.Errorf("%s keeps %s at %s, so that nothing was changed. Take this out of %s:\n\n%s",
		k.name, where, current, k.into, k.stanza("<the stock activator's image>", current))
}

func hasKey(m map[string]string, key string) bool {
	_, ok := m[key]
	return ok
}

func managed(d *appsv1.Deployment, by string) bool {
	for _, e := range d.ManagedFields {
		if e.Manager == by && e.Subresource == "" {
			return true
		}
	}
	return false
}

func operatorStanza(_, to string) string {
	return "spec:\n  registry:\n    override:\n      " + Name + ": " + to + "\n"
}

func kustomizeStanza(from, to string) string { return imagesStanza("", from, to) }

func fluxStanza(from, to string) string { return "spec:\n" + imagesStanza("  ", from, to) }

func fluxHelmStanza(from, to string) string {
	return "spec:\n  postRenderers:\n  - kustomize:\n" + imagesStanza("      ", from, to)
}

// imagesStanza is kustomize's, which names the image to replace without its tag or digest.
func imagesStanza(indent, from, to string) string {
	name := repository(to)
	version, ok := strings.CutPrefix(to, name+":")
	field := "newTag"
	if _, digest, pinned := strings.Cut(to, "@"); pinned {
		field, version, ok = "digest", digest, true
	}
	stanza := indent + "images:\n" + indent + "- name: " + repository(from) + "\n" + indent + "  newName: " + name + "\n"
	if ok {
		stanza += indent + "  " + field + ": " + version + "\n"
	}
	return stanza
}
