package swap

import (
	"cmp"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
)

// Keeper is a tool that keeps the activator's Deployment as it is defined elsewhere, and would
// revert what is changed here.
type Keeper struct {
	Name string
	// stanza returns what has the keeper run an image in the place of another.
	stanza func(from, to string) string
	into   string // where that goes
}

var keepers = []struct {
	Keeper
	keeps func(d *appsv1.Deployment) bool
}{
	{
		Keeper{"the Knative operator", operatorStanza, "the KnativeServing"},
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
		Keeper{"Flux (a HelmRelease)", fluxHelmStanza, "the HelmRelease"},
		func(d *appsv1.Deployment) bool {
			return hasKey(d.Labels, "helm.toolkit.fluxcd.io/name") || managed(d, "helm-controller")
		},
	},
	{
		Keeper{"Flux (a Kustomization)", fluxStanza, "the Kustomization of kustomize.toolkit.fluxcd.io"},
		func(d *appsv1.Deployment) bool {
			return hasKey(d.Labels, "kustomize.toolkit.fluxcd.io/name") || managed(d, "kustomize-controller")
		},
	},
	{
		Keeper{"Argo CD", kustomizeStanza, "the kustomization.yaml that its Application applies"},
		func(d *appsv1.Deployment) bool {
			return hasKey(d.Annotations, "argocd.argoproj.io/tracking-id") || hasKey(d.Labels, "argocd.argoproj.io/instance") ||
				managed(d, "argocd-controller") || managed(d, "argocd-application-controller")
		},
	},
}

// KeeperOf returns the keeper of the Deployment, or nil if none is known.
func KeeperOf(d *appsv1.Deployment) *Keeper {
	for _, k := range keepers {
		if k.keeps(d) {
			return &k.Keeper
		}
	}
	return nil
}

// Remedy returns what has the keeper run an image, and where to add it.
func (k *Keeper) Remedy(d *appsv1.Deployment, image string) string {
	stock, _ := ImageOf(d)
	if IsLibras(d, stock) {
		stock = cmp.Or(d.Annotations[StockImageAnnotation], "<the stock activator's image>")
	}
	return fmt.Sprintf("# Add this to %s:\n%s", k.into, k.stanza(stock, image))
}

// refusal says how to have the keeper run Libra's activator.
func (k *Keeper) refusal(d *appsv1.Deployment, image string) error {
	return fmt.Errorf("%s manages %s and would put its image back, so nothing was changed.\n\n%s", k.Name, where, k.Remedy(d, image))
}

// removal says how to have the keeper run the stock activator.
func (k *Keeper) removal(d *appsv1.Deployment, current string) error {
	if !IsLibras(d, current) {
		return nil
	}
	return fmt.Errorf("%s manages %s and keeps it at %s, so the Deployment was not changed. Remove this from %s:\n\n%s",
		k.Name, where, current, k.into, k.stanza("<the stock activator's image>", current))
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

// imagesStanza is in kustomize's form, which names the image to replace without its tag or digest.
func imagesStanza(indent, from, to string) string {
	name := Repository(to)
	version, ok := strings.CutPrefix(to, name+":")
	field := "newTag"
	if _, digest, pinned := strings.Cut(to, "@"); pinned {
		field, version, ok = "digest", digest, true
	}
	stanza := indent + "images:\n" + indent + "- name: " + Repository(from) + "\n" + indent + "  newName: " + name + "\n"
	if ok {
		stanza += indent + "  " + field + ": " + version + "\n"
	}
	return stanza
}
