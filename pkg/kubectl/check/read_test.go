package check

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/kubectl/swap"
)

func activatorOf(image string, change func(*appsv1.Deployment)) *appsv1.Deployment {
	d := deployment(swap.Namespace, swap.Name, swap.Name, image)
	change(d)
	return d
}

func asIs(*appsv1.Deployment) {}

func TestWhoseImageItIs(t *testing.T) {
	for image, want := range map[string]string{
		stockRepository + "@sha256:0":                           "stock",
		"dev.local/knative-activator:v0.50.0":                   "stock",
		"registry.test:5000/serving-activator-rhel8":            "stock",
		"registry.test:5000/a/libra-activator:1":                "libra's",
		"dev.local/libra-activator:0@sha256:0":                  "libra's",
		"registry.test/libra-activator/proxy:1":                 "neither",
		"registry.test/mesh@sha256:0":                           "neither",
		"registry.test/activator/mesh:activator@sha256:libra-a": "neither",
	} {
		_, libras, stock := imageOf(activatorOf(image, asIs))
		got := map[[2]bool]string{{true, false}: "libra's", {false, true}: "stock", {false, false}: "neither"}[[2]bool{libras, stock}]
		if got != want {
			t.Errorf("%s is %q, want %q", image, got, want)
		}
	}
}

func TestVersionOf(t *testing.T) {
	labelled := func(v string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.Labels[swap.LabelOfVersion] = v }
	}
	for name, tc := range map[string]struct {
		of   *appsv1.Deployment
		want string // empty if it is not known
	}{
		"by its label":             {activatorOf("activator@sha256:0", labelled("1.23.1")), "1.23.1"},
		"by its tag":               {activatorOf("registry.test:5000/activator:v1.23.0", labelled("devel")), "1.23.0"},
		"by its Go module":         {activatorOf("activator:v0.50.2", asIs), "1.23.2"},
		"by the image that it had": {activatorOf("libra-activator:main", func(d *appsv1.Deployment) { d.Annotations[swap.StockImageAnnotation] = "activator:v1.22.0" }), "1.22.0"},
		"a port is no tag":         {activatorOf("registry.test:5000/activator", asIs), ""},
		"nothing says it":          {activatorOf("activator:latest", labelled("devel")), ""},
		"KServe begins with 0":     {deployment(kserveNamespace, kserveController, "manager", "kserve-controller:v0.50.0"), "0.50.0"},
	} {
		t.Run(name, func(t *testing.T) {
			v, _ := versionOf(tc.of)
			if got := ""; v != nil {
				if got = v.String(); got != tc.want {
					t.Errorf("it is %s, want %q", got, tc.want)
				}
			} else if tc.want != "" {
				t.Errorf("it is not known, want %s", tc.want)
			}
		})
	}
}

// A keeper that has Libra's image sets it, and nothing is wrong.
func TestAKeeperThatGivesLibrasImage(t *testing.T) {
	d := activatorOf("example.com/libra-activator:1", func(d *appsv1.Deployment) {
		d.Labels["argocd.argoproj.io/instance"] = "knative"
		delete(d.Annotations, swap.StockImageAnnotation)
	})
	c := &Cluster{}
	c.activator.get(func() (*appsv1.Deployment, error) { return d, nil })
	for _, look := range []look{activatorOwner, activatorImage} {
		found, err := look(t.Context(), c)
		if err != nil || len(found) != 1 || found[0].Severity != OK {
			t.Errorf("Found %+v (%v), want that all is fine", found, err)
		}
	}
}

func TestRedisBytes(t *testing.T) {
	for text, want := range map[string]int64{"224mb": 224 << 20, "1GB": 1 << 30, "64kb": 64 << 10, "100": 100, "100b": 100, "": -1, "0": -1, "-1mb": -1, "much": -1, "1.5gb": -1} {
		got, err := redisBytes(text)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q is %d bytes, want %d", text, got, want)
		}
	}
}

func TestOnlyTheVPCCNIThatIsToldToEnforces(t *testing.T) {
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "aws-node"}, {Name: "aws-eks-nodeagent", Args: []string{"--enable-network-policy=false"}}}}
	if amazonEnforces(spec) {
		t.Error("it enforces what it is told not to")
	}
	spec.Containers[1].Args[0] = "--enable-network-policy=true"
	if !amazonEnforces(spec) {
		t.Error("it does not enforce what it is told to")
	}
}

func TestAKubeletThatDoesNotSayItsCgroupVersion(t *testing.T) {
	for metrics, want := range map[string]int{
		"":                           0,
		"kubelet_cgroup_version 2\n": 2,
		"# TYPE kubelet_cgroup_version gauge\nkubelet_cgroup_version 1\n":   1,
		"# TYPE kubelet_node_name gauge\nkubelet_node_name{node=\"a\"} 1\n": 0,
	} {
		if got, err := cgroupVersion([]byte(metrics)); got != want || err != nil {
			t.Errorf("%q says %d, %v, want %d", metrics, got, err, want)
		}
	}
	if _, err := cgroupVersion([]byte("<html>")); err == nil {
		t.Error("what are no metrics is no error")
	}
}
