package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"libra.dev/libra/loadtest/box/layout"
)

const etcdAddress = "127.0.0.1:2379"

// component is one process of the node.
type component struct {
	name string
	path string
	// args follow argv[0], which is the name: kubelite runs the component of that name.
	args []string
	// worker is the node whose first process this is.
	worker *member
}

// componentSet groups the node's components by what they wait for.
type componentSet struct {
	stores    []component // nothing
	apiServer component   // etcd
	clients   []component // an API server and a containerd that answer
}

// components returns the components of the control node.
func components(m member, etcdDir string) componentSet {
	l := m.layout
	kubelite := l.Bin("kubelite")
	client := func(name string) string { return "--kubeconfig=" + pki(l, name+".kubeconfig") }
	delegated := func(name string) []string {
		config := pki(l, name+".kubeconfig")
		return []string{"--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config}
	}
	stores := []component{{
		name: "etcd", path: kubelite,
		args: []string{
			"--data-dir=" + etcdDir,
			"--listen-client-urls=http://" + etcdAddress, "--advertise-client-urls=http://" + etcdAddress,
			"--listen-peer-urls=http://127.0.0.1:2380",
			// A crash loses the whole box, and the cluster with it.
			"--unsafe-no-fsync",
			"--log-level=warn",
		},
	}, containerd(l)}
	apiServer := component{
		name: "kube-apiserver", path: kubelite,
		args: []string{
			"--etcd-servers=http://" + etcdAddress,
			"--secure-port=6443", "--advertise-address=" + nodeIP,
			"--service-cluster-ip-range=" + serviceCIDR,
			"--tls-cert-file=" + pki(l, "apiserver.crt"), "--tls-private-key-file=" + pki(l, "apiserver.key"),
			"--client-ca-file=" + pki(l, "ca.crt"),
			"--authorization-mode=Node,RBAC",
			"--kubelet-client-certificate=" + pki(l, "apiserver-kubelet-client.crt"),
			"--kubelet-client-key=" + pki(l, "apiserver-kubelet-client.key"),
			"--kubelet-certificate-authority=" + pki(l, "ca.crt"),
			"--kubelet-preferred-address-types=InternalIP",
			"--service-account-issuer=https://kubernetes.default.svc." + clusterDomain,
			"--service-account-key-file=" + pki(l, "sa.key"), "--service-account-signing-key-file=" + pki(l, "sa.key"),
			"--requestheader-client-ca-file=" + pki(l, "front-proxy-ca.crt"),
			"--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file=" + pki(l, "front-proxy-client.crt"),
			"--proxy-client-key-file=" + pki(l, "front-proxy-client.key"),
			"--allow-privileged=true",
			"--profiling=false",
		},
	}
	clients := []component{{
		name: "kube-controller-manager", path: kubelite,
		args: append(delegated("kube-controller-manager"), client("kube-controller-manager"),
			"--leader-elect=false", "--use-service-account-credentials=true",
			"--service-account-private-key-file="+pki(l, "sa.key"), "--root-ca-file="+pki(l, "ca.crt"),
			"--flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins",
			"--bind-address=127.0.0.1", "--profiling=false",
			// The whole stack is installed at once while somebody waits.
			"--kube-api-qps=100", "--kube-api-burst=200",
		),
	}, {
		name: "kube-scheduler", path: kubelite,
		args: append(delegated("kube-scheduler"), client("kube-scheduler"),
			"--leader-elect=false", "--bind-address=127.0.0.1", "--profiling=false"),
	}, kubelet(m), kubeProxy(m), {
		name: "dns", path: l.Bin("dns"),
		args: []string{"-conf", corefilePath(l)},
	}}
	if !m.alone() {
		apiServer.args = append(apiServer.args,
			// The annotations of their namespaces send the platform's pods to the control node.
			"--enable-admission-plugins=PodNodeSelector,PodTolerationRestriction",
			fmt.Sprintf("--default-not-ready-toleration-seconds=%d", tolerationOfNodes),
			fmt.Sprintf("--default-unreachable-toleration-seconds=%d", tolerationOfNodes),
		)
		clients[0].args = append(clients[0].args, fmt.Sprintf("--node-monitor-grace-period=%ds", graceOfNodes))
	}
	return componentSet{stores, apiServer, clients}
}

// workerComponents returns the components of a worker.
func workerComponents(m member) componentSet {
	return componentSet{stores: []component{containerd(m.layout)}, clients: []component{kubelet(m), kubeProxy(m)}}
}

func containerd(l layout.Layout) component {
	return component{name: "containerd", path: l.Bin("containerd"), args: []string{"--config", containerdConfigPath(l)}}
}

func kubelet(m member) component {
	l := m.layout
	args := []string{
		"--kubeconfig=" + pki(l, m.own("kubelet")+".kubeconfig"), "--config=" + kubeletConfigPath(l),
		"--hostname-override=" + m.name(), "--node-ip=" + m.ip(), "--v=2",
	}
	if !m.alone() {
		args = append(args, "--node-labels="+m.labels())
	}
	return component{name: "kubelet", path: l.Bin("kubelite"), args: args}
}

func kubeProxy(m member) component {
	return component{
		name: "kube-proxy", path: m.layout.Bin("kubelite"),
		args: []string{
			"--kubeconfig=" + pki(m.layout, "kube-proxy.kubeconfig"), "--proxy-mode=nftables", "--cluster-cidr=" + m.clusterCIDR(),
			"--hostname-override=" + m.name(),
			// These limits belong to the machine, not to a network namespace.
			"--conntrack-max-per-core=0", "--conntrack-min=0",
			"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		},
	}
}

// environment is the same for every component, whoever the caller is: the caller's proxy, say,
// must not come between them.
func environment(l layout.Layout) []string {
	return []string{
		fmt.Sprintf("PATH=%s:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", l.Bin("")),
		"HOME=/root",
	}
}

// ComponentNames lists the processes of the control node, each of which has a log.
func ComponentNames() []string {
	set := components(alone(layout.Layout{}), "")
	return namesOf(slices.Concat([]component{{name: initName}}, set.stores, []component{set.apiServer}, set.clients))
}

// componentNames lists the processes of a node.
func (m member) componentNames() []string {
	if !m.isWorker() {
		return ComponentNames()
	}
	set := workerComponents(m)
	return namesOf(slices.Concat([]component{{name: nodeName}}, set.stores, set.clients))
}

func namesOf(list []component) []string {
	names := make([]string, 0, len(list))
	for _, c := range list {
		names = append(names, c.name)
	}
	return names
}

func logPath(l layout.Layout, name string) string { return filepath.Join(l.Logs(), name+".log") }

func openLog(l layout.Layout, name string) (*os.File, error) {
	return os.OpenFile(logPath(l, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}
