package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/box/layout"
)

var testLayout = layout.Layout{Cache: "/cache", State: `/st"ate`}

func TestKubeletConfig(t *testing.T) {
	data, err := kubeletConfig(alone(testLayout))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := yaml.UnmarshalStrict(data, &got); err != nil {
		t.Fatal(err)
	}
	// Settings that the box needs, or that protect the machine.
	for key, want := range map[string]any{
		"kind":                          "KubeletConfiguration",
		"cgroupRoot":                    "/libra-box",
		"cgroupDriver":                  "cgroupfs",
		"failCgroupV1":                  false,
		"failSwapOn":                    false,
		"protectKernelDefaults":         true,
		"makeIPTablesUtilChains":        false,
		"localStorageCapacityIsolation": false,
		"maxPods":                       220.0,
		"podLogsDir":                    `/st"ate/logs/pods`,
		"clusterDNS":                    []any{nodeIP},
	} {
		if diff := cmp.Diff(want, got[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	for _, reserved := range []string{"kubeReserved", "systemReserved", "reservedSystemCPUs"} {
		if v, ok := got[reserved]; ok {
			t.Errorf("%s is %v: it takes from what pods may use", reserved, v)
		}
	}
}

func TestContainerdConfig(t *testing.T) {
	got := string(containerdConfig(testLayout, "/opt/a b/runc"))
	for _, want := range []string{
		"version = 3\n",
		`root = "/st\"ate/run/containerd"`,
		`state = "/run/containerd"`,
		`address = "/run/containerd/containerd.sock"`,
		`sandbox = "dev.local/pause:1"`,
		// Without it, runc fails where CAP_SYS_RESOURCE is missing.
		"restrict_oom_score_adj = true",
		"disable_apparmor = true",
		`conf_dir = "/st\"ate/run/cni"`,
		`BinaryName = "/opt/a b/runc"`,
		"SystemdCgroup = false",
		`disabled_plugins = ["io.containerd.internal.v1.opt"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in:\n%s", want, got)
		}
	}
}

func TestCNIConfig(t *testing.T) {
	data, err := cniConfig(alone(testLayout))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Plugins []struct {
			Type, Bridge string
			IPAM         struct {
				Ranges [][]struct{ Subnet, RangeStart string }
			}
		}
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Plugins) != 1 || got.Plugins[0].Type != "bridge" || got.Plugins[0].Bridge != bridgeName {
		t.Fatalf("plugins %+v, want one bridge, %s", got.Plugins, bridgeName)
	}
	if r := got.Plugins[0].IPAM.Ranges[0][0]; r.Subnet != podCIDR || r.RangeStart != "10.244.0.10" {
		t.Errorf("pods get addresses of %+v", r)
	}
}

func TestCorefile(t *testing.T) {
	got := string(corefile(layout.Layout{State: "/state"}))
	for _, want := range []string{"cluster.local:53 in-addr.arpa:53 {", "kubeconfig /state/pki/dns.kubeconfig", "bind 10.244.0.1", "rcode NXDOMAIN"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

func TestComponents(t *testing.T) {
	names := ComponentNames()
	want := []string{"init", "etcd", "containerd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "dns"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("ComponentNames() (-want +got):\n%s", diff)
	}
}
