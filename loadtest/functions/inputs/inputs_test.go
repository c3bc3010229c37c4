package inputs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/yaml"
)

func TestDrawFollowsFromItsSeed(t *testing.T) {
	for _, f := range Functions {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			in := draw(t, f.Name, 1, 0)
			if !cmp.Equal(in, draw(t, f.Name, 1, 0)) {
				t.Error("the same seed and number made another input")
			}
			if len(in.Body) == 0 || len(in.Expect) == 0 {
				t.Errorf("%d bytes, of which %d things are expected", len(in.Body), len(in.Expect))
			}
		})
	}
}

func TestSeedsAndNumbersDiffer(t *testing.T) {
	in := draw(t, "dynamichtml", 1, 0)
	if cmp.Equal(in.Body, draw(t, "dynamichtml", 1, 1).Body) || cmp.Equal(in.Body, draw(t, "dynamichtml", 2, 0).Body) {
		t.Error("another seed or number made the same input")
	}
}

func draw(t *testing.T, function string, seed, n uint64) Input {
	t.Helper()
	in, err := Draw(function, seed, n)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestDrawNamesTheFunctionsThatItKnows(t *testing.T) {
	if _, err := Draw("sort", 1, 0); err == nil || !strings.Contains(err.Error(), `"sort"`) || !strings.Contains(err.Error(), `"pagerank"`) {
		t.Errorf("got %v, want an error that names what is there", err)
	}
}

func TestSaidIsWhatTheAnswerSays(t *testing.T) {
	did := struct {
		Sum   int64   `json:"sum"`
		Name  string  `json:"name"`
		Share float64 `json:"share"`
		More  int     `json:"more"`
	}{1<<60 + 1, "nine", 0.5, 4}
	got := Said(did, map[string]int64{"sum": 0, "name": 0, "share": 0, "missing": 0})
	if diff := cmp.Diff(map[string]int64{"sum": 1<<60 + 1}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Each of the ten has a program and is installed by one command, in its own pod.
func TestTheTenAreInstalled(t *testing.T) {
	services := map[string]servingv1.Service{}
	var read func(dir string)
	read = func(dir string) {
		var k struct {
			Resources []string `json:"resources"`
		}
		decode(t, filepath.Join(dir, "kustomization.yaml"), &k)
		for _, r := range k.Resources {
			path := filepath.Join(dir, r)
			if !strings.HasSuffix(r, ".yaml") {
				read(path)
				continue
			}
			var s servingv1.Service
			if decode(t, path, &s); s.APIVersion == "serving.knative.dev/v1" {
				services[s.Name] = s
			}
		}
	}
	read("../ten")
	for _, f := range Functions {
		if _, err := os.Stat(filepath.Join("../cmd", f.Name, "main.go")); err != nil {
			t.Error(err)
		}
		s, ok := services[f.Name]
		if !ok || len(s.Spec.Template.Spec.Containers) != 1 {
			t.Errorf("%s: no Service with one container is among %d", f.Name, len(services))
			continue
		}
		spec := s.Spec.Template.Spec
		c := spec.Containers[0]
		if c.Image != "libra-fn-"+f.Name || *spec.ContainerConcurrency != 1 || s.Spec.Template.Labels["libra.dev/enabled"] != "true" {
			t.Errorf("%s: image %s, %d requests at once, labels %v", f.Name, c.Image, *spec.ContainerConcurrency, s.Spec.Template.Labels)
		}
		for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := c.Resources.Requests[r], c.Resources.Limits[r]
			if request.IsZero() || 2*request.MilliValue() > limit.MilliValue() {
				t.Errorf("%s: requests %v %s of its limit of %v; it must leave half and more to lend", f.Name, &request, r, &limit)
			}
		}
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMAXPROCS" }) {
			t.Errorf("%s: sets its number of threads, which its owner would leave to Go", f.Name)
		}
	}
}

func decode(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err == nil {
		err = json.Unmarshal(asJSON, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
