package dist

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

// decode decodes objects as kubectl does.
func decode(t *testing.T, data []byte) []unstructured.Unstructured {
	t.Helper()
	var objects []unstructured.Unstructured
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		var o unstructured.Unstructured
		err := documents.Decode(&o.Object)
		if err == io.EOF {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// rendered returns the objects of each file of the release.
func rendered(t *testing.T, r Release) map[string][]unstructured.Unstructured {
	t.Helper()
	objects := map[string][]unstructured.Unstructured{}
	for _, f := range files {
		data, err := f.render(r)
		if err != nil {
			t.Fatal(err)
		}
		objects[f.name] = decode(t, data)
	}
	return objects
}

func key(o unstructured.Unstructured) string {
	return strings.Join([]string{o.GroupVersionKind().GroupKind().String(), o.GetNamespace(), o.GetName()}, " ")
}

func TestRenderedTwiceIsTheSame(t *testing.T) {
	r := testRelease()
	for _, f := range files {
		first, err := f.render(r)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := f.render(r); err != nil || !bytes.Equal(first, again) {
			t.Errorf("%s differs from itself (%v)", f.name, err)
		}
	}
}

// imageName matches the image that an object names, wherever in the object that is.
var imageName = regexp.MustCompile(`\b(?:image|IMAGE)"?: *"?([^"\s,}]+)`)

func TestImagesAreTheReleases(t *testing.T) {
	r := testRelease()
	references := map[string]bool{}
	for _, reference := range r.Images {
		references[reference] = true
	}
	used := map[string]bool{}
	for _, f := range files {
		data, err := f.render(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range decode(t, data) {
			if o.GetKind() == "CustomResourceDefinition" {
				continue
			}
			text, err := o.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range imageName.FindAllSubmatch(text, -1) {
				used[string(match[1])] = true
				if !references[string(match[1])] {
					t.Errorf("%s: %s has the image %s, which is not by the release's digest", f.name, key(o), match[1])
				}
			}
		}
	}
	for _, name := range []string{"libra-agent", "libra-predictor", "libra-resizer", "libra-scheduler", "redis"} {
		if !used[r.Images[name]] {
			t.Errorf("%s is in no file", r.Images[name])
		}
	}
}

func TestAnImageThatIsNotReleasedIsNamed(t *testing.T) {
	r := testRelease()
	delete(r.Images, "libra-agent")
	_, err := files[0].render(r)
	if err == nil || !strings.Contains(err.Error(), `libra.yaml: DaemonSet libra-agent runs the image "libra-agent"`) {
		t.Errorf("%v, want what runs it", err)
	}
}

// Deleting a file deletes all of its objects.
func TestFilesHoldLibrasOwnObjects(t *testing.T) {
	own := []string{settings.Namespace, settings.AgentNamespace, "libra-samples"}
	for name, objects := range rendered(t, testRelease()) {
		if len(objects) == 0 {
			t.Errorf("%s is empty", name)
		}
		for _, o := range objects {
			ours := strings.HasPrefix(o.GetName(), "libra-") || strings.HasSuffix(o.GetName(), "."+v1alpha1.GroupVersion.Group)
			if !ours && !slices.Contains(own, o.GetNamespace()) {
				t.Errorf("%s: %s is not Libra's alone", name, key(o))
			}
			if part := o.GetLabels()["app.kubernetes.io/part-of"]; part != "libra" && name != "libra-activator.yaml" {
				t.Errorf("%s: %s is part of %q", name, key(o), part)
			}
		}
	}
}

// The files have the same objects as the kustomizations.
func TestFilesHoldWhatTheKustomizationsDo(t *testing.T) {
	objects := rendered(t, testRelease())
	var got []unstructured.Unstructured
	for _, name := range []string{"libra.yaml", "libra-predictor-kserve.yaml", "libra-activator.yaml"} {
		got = append(got, objects[name]...)
	}
	var want []unstructured.Unstructured
	for _, dir := range []string{"manifests/base", "manifests/activator"} {
		data, err := file{name: dir, dir: dir}.render(testRelease())
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, decode(t, data)...)
	}
	byKey := func(a, b unstructured.Unstructured) int { return strings.Compare(key(a), key(b)) }
	slices.SortFunc(got, byKey)
	slices.SortFunc(want, byKey)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the kustomizations (-) and the files (+) differ:\n%s", diff)
	}
}

// unshipped are kustomizations that only go into others: a user's own, or one here.
var unshipped = []string{"manifests/base", "manifests/components"}

func TestEveryKustomizationIsShipped(t *testing.T) {
	err := fs.WalkDir(os.DirFS(root), "manifests", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "kustomization.yaml" {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		isOf := func(of string) bool { return dir == of || strings.HasPrefix(dir, of+"/") }
		if !slices.ContainsFunc(unshipped, isOf) && !slices.ContainsFunc(files, func(f file) bool { return isOf(f.dir) }) {
			t.Errorf("no file of a release has %s: add it to files", dir)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
