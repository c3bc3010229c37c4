package cluster

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/box/layout"
)

// Machine is a node on a machine of its own, like those that users have: systemd is init and
// manages the cgroups, which are v2.
type Machine struct {
	// Root is the machine's root file system. Layout says where things are on it.
	Root   string
	Layout layout.Layout
	// Kubelet is the path of the kubelet on the machine.
	Kubelet string
	// Runtime is the path of the OCI runtime there, runc or crun.
	Runtime string
}

// systemdKubelet has the kubelet settings of such a machine that differ from the box's. nil stands
// for Kubernetes' default.
var systemdKubelet = object{
	"cgroupDriver":                  "systemd",
	"cgroupRoot":                    nil,
	"failCgroupV1":                  nil,
	"protectKernelDefaults":         nil,
	"localStorageCapacityIsolation": nil,
	// One CPU is for shared use. Containers can get the others for themselves.
	"cpuManagerPolicy":   "static",
	"reservedSystemCPUs": "0",
}

// Write writes the configuration of the node's components, and a unit for each.
func (m Machine) Write(now time.Time) error {
	l := m.Layout
	on := func(path string) string { return filepath.Join(m.Root, path) }
	if err := writePKI(on(l.PKI()), now, alone(l)); err != nil {
		return err
	}
	settings := kubeletSettings(alone(l))
	for name, value := range systemdKubelet {
		if settings[name] = value; value == nil {
			delete(settings, name)
		}
	}
	kubelet, err := yaml.Marshal(settings)
	if err != nil {
		return err
	}
	cni, err := cniConfig(alone(l))
	if err != nil {
		return err
	}
	files := map[string][]byte{
		kubeletConfigPath(l):    kubelet,
		containerdConfigPath(l): m.containerdConfig(),
		corefilePath(l):         corefile(l),
		filepath.Join(cniConfigDir(l), "10-libra-box.conflist"): cni,
		"/etc/modules-load.d/libra.conf":                        []byte("overlay\nbr_netfilter\nnf_tables\n"),
		"/etc/sysctl.d/90-libra.conf": []byte("net.ipv4.ip_forward = 1\nnet.bridge.bridge-nf-call-iptables = 1\n" +
			"vm.overcommit_memory = 1\nkernel.panic = 10\nkernel.panic_on_oops = 1\n"),
	}
	maps.Copy(files, m.units())
	for path, data := range files {
		if err := os.MkdirAll(filepath.Dir(on(path)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(on(path), data, 0o644); err != nil {
			return err
		}
	}
	return os.MkdirAll(on(podLogs(l)), 0o755)
}

// containerdConfig uses containerd's defaults wherever it need not differ from them.
func (m Machine) containerdConfig() []byte {
	return fmt.Appendf(nil, `version = 3

[grpc]
  address = %[1]s

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %[2]s

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [%[3]s]
  conf_dir = %[4]s

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = %[5]s
    SystemdCgroup = true
`,
		strconv.Quote(containerdSocket), strconv.Quote(PauseImage), strconv.Quote(cniPlugins), strconv.Quote(cniConfigDir(m.Layout)), strconv.Quote(m.Runtime))
}

// controllers are those that Libra's objects and pods need: an emulated machine is slow.
var controllers = []string{
	"daemonset-controller", "deployment-controller", "replicaset-controller", "endpointslice-controller", "namespace-controller",
	"garbage-collector-controller", "node-lifecycle-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller",
}

const (
	networkUnit = "libra-network"
	unitsDir    = "/etc/systemd/system"
)

// networkCommands make the bridge with the node's address, and a route that takes the node's own
// requests to services as far as kube-proxy's rules.
var networkCommands = []string{
	"ip link set lo up",
	"ip link add " + bridgeName + " type bridge",
	"ip address add " + nodeIP + "/24 dev " + bridgeName,
	"ip link set " + bridgeName + " up",
	"ip route add " + serviceCIDR + " dev " + bridgeName,
}

// Prepare returns a script that does everything that works without booting the machine, which
// would take minutes on an emulated one: it imports images, has the API server fill its store, and
// applies objects. The script must run in the machine's root file system, in namespaces that end
// with it.
func (m Machine) Prepare(images, objects string) []byte {
	set := components(alone(m.Layout), etcdDir)
	start := func(c component) string { return m.command(c) + " >/run/" + c.name + ".log 2>&1 & begun=\"$! $begun\"" }
	lines := []string{"export PATH=" + m.Layout.Bin("") + ":/usr/sbin:/usr/bin:/sbin:/bin KUBECONFIG=" + m.Layout.Kubeconfig()}
	lines = append(lines, networkCommands...)
	for _, c := range set.stores {
		lines = append(lines, start(c))
	}
	within := func(what, command string) string {
		return fmt.Sprintf("for i in $(seq 600); do %s && break; sleep 0.1; [ $i != 600 ] || { tail -n 5 /run/*.log >&2; echo %s is not ready >&2; exit 1; }; done", command, what)
	}
	lines = append(lines,
		within("etcd", etcdReady), start(set.apiServer), within("containerd", "ctr version >/dev/null 2>&1"),
		"for image in "+images+"/*.tar; do ctr --namespace k8s.io images import --local $image >/dev/null; done",
		within("the API server", m.apiReady()),
		"kubectl create clusterrole "+dnsUser+" --verb=list,watch --resource=services,namespaces,endpointslices.discovery.k8s.io",
		"kubectl create clusterrolebinding "+dnsUser+" --clusterrole="+dnsUser+" --user="+dnsUser,
		"kubectl apply --server-side -f "+objects,
		// The last one first: the store must get all writes.
		"for pid in $begun; do kill $pid; wait $pid || true; done",
	)
	return []byte(strings.Join(lines, "\n") + "\n")
}

const (
	etcdDir   = "/var/lib/etcd"
	etcdReady = "curl -s --output /dev/null http://" + etcdAddress + "/health"
)

func (m Machine) apiReady() string {
	return fmt.Sprintf("curl -sf --output /dev/null --cacert %s %s/readyz", pki(m.Layout, "ca.crt"), apiServerURL)
}

// command returns the shell command of a component, with all arguments and its name as argv[0].
func (m Machine) command(c component) string {
	words := []string{"exec", "-a", c.name, c.path}
	for _, a := range c.args {
		words = append(words, "'"+a+"'")
	}
	return "(" + strings.Join(words, " ") + ")"
}

// units returns, by path, the unit of each component and of the bridge with the node's address,
// and the file that has them started.
func (m Machine) units() map[string][]byte {
	set := components(alone(m.Layout), etcdDir)
	network := "[Unit]\nDescription=The bridge of the pods\n[Service]\nType=oneshot\nRemainAfterExit=yes\n"
	for _, line := range networkCommands {
		network += "ExecStart=" + line + "\n"
	}
	units := map[string]string{networkUnit: network}
	for _, c := range set.stores {
		units[c.name] = m.unit(c, "")
	}
	units[set.apiServer.name] = m.unit(set.apiServer, etcdReady)
	for _, c := range set.clients {
		// Clients would keep an API server that has just started from getting ready.
		ready := m.apiReady()
		if c.name == "kubelet" {
			c.path, ready = m.Kubelet, "" // elsewhere the kubelet starts the API server
		}
		if c.name == "kube-controller-manager" {
			c.args = append(c.args, "--controllers="+strings.Join(controllers, ","))
		}
		units[c.name] = m.unit(c, ready)
	}
	files := map[string][]byte{}
	var wants []string
	for _, name := range slices.Sorted(maps.Keys(units)) {
		files[filepath.Join(unitsDir, name+".service")] = []byte(units[name])
		wants = append(wants, name+".service")
	}
	files[filepath.Join(unitsDir, "multi-user.target.d/libra.conf")] = []byte("[Unit]\nWants=" + strings.Join(wants, " ") + "\n")
	return files
}

// unit starts a component once the command ready succeeds, or at once if ready is empty.
func (m Machine) unit(c component, ready string) string {
	var await string
	if ready != "" {
		await = fmt.Sprintf("ExecStartPre=/bin/sh -c 'until %s; do sleep 1; done'\n", ready)
	}
	var delegate string
	if c.name == "containerd" {
		// As in upstream's unit: containers outlive containerd.
		delegate = "Delegate=yes\nKillMode=process\nTasksMax=infinity\nOOMScoreAdjust=-999\n"
	}
	if c.name == "kubelet" {
		delegate = "KillMode=process\n"
	}
	words := make([]string, 0, len(c.args)+1)
	for _, a := range slices.Concat([]string{c.name}, c.args) {
		words = append(words, strconv.Quote(a))
	}
	return fmt.Sprintf(`[Unit]
Description=%[1]s
After=%[2]s.service
Requires=%[2]s.service
StartLimitIntervalSec=0
[Service]
%[3]sExecStart=@%[4]s %[5]s
Environment=%[6]s
Restart=always
RestartSec=1
TimeoutStartSec=300
LimitNOFILE=1048576
%[7]s[Install]
WantedBy=multi-user.target
`, c.name, networkUnit, await, c.path, strings.Join(words, " "), strings.Join(environment(m.Layout), " "), delegate)
}
