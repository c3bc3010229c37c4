package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/box/layout"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	cniPlugins       = "/usr/lib/cni"
	bridgeSysctl     = "/proc/sys/net/bridge/bridge-nf-call-iptables"

	dnsUser      = "system:libra-box:dns"
	dnsReadyPort = 8181
)

func containerdConfigPath(l layout.Layout) string { return filepath.Join(l.Run(), "containerd.toml") }
func kubeletConfigPath(l layout.Layout) string    { return filepath.Join(l.Run(), "kubelet.yaml") }
func corefilePath(l layout.Layout) string         { return filepath.Join(l.Run(), "Corefile") }
func cniConfigDir(l layout.Layout) string         { return filepath.Join(l.Run(), "cni") }
func containerdRoot(l layout.Layout) string       { return filepath.Join(l.Run(), "containerd") }
func podLogs(l layout.Layout) string              { return filepath.Join(l.Logs(), "pods") }
func pki(l layout.Layout, name string) string     { return filepath.Join(l.PKI(), name) }

// writeConfigs writes the configuration files of a node's components.
func writeConfigs(m member, runc string) error {
	kubelet, err := kubeletConfig(m)
	if err != nil {
		return err
	}
	cni, err := cniConfig(m)
	if err != nil {
		return err
	}
	l := m.layout
	files := map[string][]byte{
		containerdConfigPath(l): containerdConfig(l, runc),
		kubeletConfigPath(l):    kubelet,
		filepath.Join(cniConfigDir(l), "10-libra-box.conflist"): cni,
	}
	if !m.isWorker() {
		files[corefilePath(l)] = corefile(l)
	}
	for path, data := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

type object = map[string]any

func kubeletConfig(m member) ([]byte, error) { return yaml.Marshal(kubeletSettings(m)) }

func kubeletSettings(m member) object {
	l := m.layout
	settings := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": pki(l, "ca.crt")},
		},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              pki(l, m.own("kubelet-serving")+".crt"),
		"tlsPrivateKeyFile":        pki(l, m.own("kubelet-serving")+".key"),
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               m.cgroupRoot(),
		"failCgroupV1":             false,
		"failSwapOn":               false,
		// Otherwise the kubelet would set the machine's sysctls. init covers them with files
		// that already have its values.
		"protectKernelDefaults":  true,
		"makeIPTablesUtilChains": false,
		"clusterDomain":          clusterDomain,
		"clusterDNS":             []string{nodeIP},
		"resolvConf":             "",
		// An evaluation runs many small functions at once.
		"maxPods":         220,
		"podLogsDir":      podLogs(l),
		"volumePluginDir": "/var/lib/kubelet/volumeplugins",
		// All of the machine is allocatable: nothing is reserved, and eviction begins late.
		"evictionHard":                object{"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		// This would need a file system with quotas, or statistics of the root file system,
		// which a tmpfs does not give.
		"localStorageCapacityIsolation": false,
	}
	if m.alone() {
		return settings
	}
	// A lost node is noticed after graceOfNodes. The lease is renewed every quarter of this.
	settings["nodeLeaseDurationSeconds"] = leaseOfNodes
	if !m.isWorker() {
		settings["registerWithTaints"] = []object{{"key": ControlTaint, "effect": "NoSchedule"}}
	}
	return settings
}

func containerdConfig(l layout.Layout, runc string) []byte {
	return fmt.Appendf(nil, `version = 3
root = %[1]s
state = "/run/containerd"
# They make folders outside of the box.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]

[grpc]
  address = %[2]s

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %[3]s

[plugins.'io.containerd.cri.v1.runtime']
  # Lowering a process's OOM score needs a capability that root may lack.
  restrict_oom_score_adj = true
  # Its profile would be loaded into the machine's kernel, and stay there.
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%[4]s]
    conf_dir = %[5]s
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = %[6]s
        SystemdCgroup = false
`,
		strconv.Quote(containerdRoot(l)),
		strconv.Quote(containerdSocket),
		strconv.Quote(PauseImage),
		strconv.Quote(cniPlugins),
		strconv.Quote(cniConfigDir(l)),
		strconv.Quote(runc),
	)
}

// cniConfig puts pods on the bridge with the node's address. They cannot reach anything
// outside the machine, and need not: all images are local.
func cniConfig(m member) ([]byte, error) {
	return json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       clusterName,
		"plugins": []object{{
			"type":        "bridge",
			"bridge":      bridgeName,
			"isGateway":   true,
			"hairpinMode": true,
			"ipam": object{
				"type":    "host-local",
				"ranges":  [][]object{{{"subnet": m.podCIDR(), "rangeStart": m.podRangeStart()}}},
				"routes":  []object{{"dst": "0.0.0.0/0"}},
				"dataDir": "/run/cni",
			},
		}},
	}, "", "  ")
}

// corefile forwards nothing, because there is no other server: a name outside of the cluster
// does not exist.
func corefile(l layout.Layout) []byte {
	return fmt.Appendf(nil, `%[1]s:53 in-addr.arpa:53 {
	bind %[2]s
	errors
	ready %[2]s:%[3]d
	kubernetes %[1]s in-addr.arpa {
		kubeconfig %[4]s
		ttl 5
	}
	cache 5
}

.:53 {
	bind %[2]s
	errors
	template ANY ANY {
		rcode NXDOMAIN
	}
}
`, clusterDomain, nodeIP, dnsReadyPort, pki(l, "dns.kubeconfig"))
}
