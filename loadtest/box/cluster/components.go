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
	// args follow argv[0], which is the name: kubelite goes by it.
	args []string
}

// componentSet holds the node's components by what they wait for.
type componentSet struct {
	stores    []component // nothing
	apiServer component   // etcd
	clients   []component // an API server and a containerd that answer
}

func components(l layout.Layout, etcdDir string) componentSet {
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
			// A crash loses the cluster, as it does all else of the box.
			"--unsafe-no-fsync",
			"--log-level=warn",
		},
	}, {
		name: "containerd", path: l.Bin("containerd"),
		args: []string{"--config", containerdConfigPath(l)},
	}}
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
			"--service-account-key-file=" + pki(l, "sa.pub"), "--service-account-signing-key-file=" + pki(l, "sa.key"),
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
			// The whole stack is installed at once, and somebody waits for it.
			"--kube-api-qps=100", "--kube-api-burst=200",
		),
	}, {
		name: "kube-scheduler", path: kubelite,
		args: append(delegated("kube-scheduler"), client("kube-scheduler"),
			"--leader-elect=false", "--bind-address=127.0.0.1", "--profiling=false"),
	}, {
		name: "kubelet", path: kubelite,
		args: []string{
			client("kubelet"), "--config=" + kubeletConfigPath(l),
			"--hostname-override=" + NodeName, "--node-ip=" + nodeIP, "--v=2",
		},
	}, {
		name: "kube-proxy", path: kubelite,
		args: []string{
			client("kube-proxy"), "--proxy-mode=nftables", "--cluster-cidr=" + podCIDR,
			"--hostname-override=" + NodeName,
			// These limits are the machine's, not a network namespace's.
			"--conntrack-max-per-core=0", "--conntrack-min=0",
			"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		},
	}, {
		name: "dns", path: l.Bin("dns"),
		args: []string{"-conf", corefilePath(l)},
	}}
	return componentSet{stores, apiServer, clients}
}

// environment is the same for every component, whoever calls: a proxy of the
// caller's, say, must not come between them.
func environment(l layout.Layout) []string {
	return []string{
		fmt.Sprintf("PATH=%s:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", l.Bin("")),
		"HOME=/root",
	}
}

// ComponentNames lists the node's processes, each of which has a log.
func ComponentNames() []string {
	names := []string{initName}
	set := components(layout.Layout{}, "")
	for _, c := range slices.Concat(set.stores, []component{set.apiServer}, set.clients) {
		names = append(names, c.name)
	}
	return names
}

func logPath(l layout.Layout, name string) string { return filepath.Join(l.Logs(), name+".log") }

func openLog(l layout.Layout, name string) (*os.File, error) {
	return os.OpenFile(logPath(l, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}
