package dist

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	page "libra.dev/libra/docs/reference"
)

var update = flag.Bool("update", false, "rewrite docs/reference/objects.md")

func TestReferenceOfObjects(t *testing.T) {
	p := page.New("Objects: all that a release makes",
		"The files of a [release](../release.md) and the objects in them. [Side effects](../side-effects.md) says what these do to a cluster, and what else changes.")
	objects := rendered(t, testRelease())
	for _, f := range files {
		p.Table(page.Code(f.name), "kind", "namespace", "name")
		in := objects[f.name]
		slices.SortFunc(in, func(a, b unstructured.Unstructured) int { return strings.Compare(key(a), key(b)) })
		for _, o := range in {
			p.Row(o.GetKind(), page.Code(o.GetNamespace()), page.Code(o.GetName()))
		}
	}
	p.Check(t, "../..", "objects.md", *update)
}
