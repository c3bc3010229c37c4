package main

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

const (
	// namespaces is the number of the functions' namespaces. Half of them are under source
	// owners, the others under node. On each node, all have the same number of pods.
	namespaces = 10
	// functionsEach is the number of Revisions in a namespace.
	functionsEach = 40
	// bystanders is the namespace of the pods that did not opt in.
	bystanders = "others"

	createdAtOnce = 24
	nodeCPU       = 16_000 // milli CPU that a node has for pods
)

var (
	allocation = api.Resources{CPUMilli: 500, MemoryBytes: 256 << 20}
	requests   = api.Resources{CPUMilli: 100, MemoryBytes: 64 << 20}
)

func namespaceOf(i int) string { return fmt.Sprintf("team-%d", i) }

// lends reports whether a namespace is under source owners.
func lends(namespace int) bool { return namespace%2 == 0 }

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// podName is the name of the j-th pod of a namespace on a node.
func podName(node, j int) string { return fmt.Sprintf("f-00001-deployment-%04d-%d", node, j) }

func revisionName(i int) string { return fmt.Sprintf("f%02d-00001", i) }

// fill makes the cluster's objects.
func (s *site) fill(ctx context.Context) error {
	s.say("making %d nodes, and %d pods on them of which %d opted in", s.nodes, s.pods, s.nodes*s.optedInEach())
	kube := s.kube
	if err := makeNamespace(ctx, kube, bystanders, nil); err != nil {
		return err
	}
	uids := map[string]types.UID{}
	for i := range namespaces {
		labels := map[string]string{}
		if lends(i) {
			labels[api.SourceLabel] = string(api.SourceOwners)
		}
		if err := makeNamespace(ctx, kube, namespaceOf(i), labels); err != nil {
			return err
		}
		for j := range functionsEach {
			made, err := s.makeRevision(ctx, namespaceOf(i), revisionName(j))
			if err != nil {
				return err
			}
			uids[made.Namespace+"/"+made.Name] = made.UID
		}
	}

	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(createdAtOnce)
	for i := range s.nodes {
		if i > 0 && i%100 == 0 {
			s.say("  %d nodes", i)
		}
		group.Go(func() error {
			if err := makeNode(ctx, kube, nodeName(i), map[string]string{"type": "kwok"}, nodeCPU); err != nil {
				return err
			}
			for _, pod := range s.podsOf(i, uids) {
				if _, err := kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
					return fmt.Errorf("make pod %s: %w", pod.Name, err)
				}
			}
			return nil
		})
		if ctx.Err() != nil {
			break
		}
	}
	return group.Wait()
}

// podsOf returns the pods of a node: its agent, functions, and others.
func (s *site) podsOf(node int, uids map[string]types.UID) []*corev1.Pod {
	agent := plainPod(settings.AgentNamespace, fmt.Sprintf("libra-agent-%04d", node), nodeName(node))
	agent.Labels = map[string]string{"app": "libra-agent", "controller-revision-hash": "79bfcd9f6b", "pod-template-generation": "1"}
	pods := []*corev1.Pod{agent}
	functions := s.optedInEach() / namespaces
	for i := range namespaces {
		for j := range functions {
			revision := revisionName((node*functions + j) % functionsEach)
			pods = append(pods, functionPod(namespaceOf(i), podName(node, j), nodeName(node), revision, uids[namespaceOf(i)+"/"+revision]))
		}
	}
	for i := len(pods); i < s.pods/s.nodes; i++ {
		pods = append(pods, plainPod(bystanders, fmt.Sprintf("web-%04d-%d", node, i), nodeName(node)))
	}
	return pods
}

func makeNamespace(ctx context.Context, kube kubernetes.Interface, name string, labels map[string]string) error {
	_, err := kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	return err
}

func makeNode(ctx context.Context, kube kubernetes.Interface, name string, labels map[string]string, cpuMilli int64) error {
	has := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewMilliQuantity(cpuMilli, resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("500"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: name}},
			NodeInfo:  corev1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux", KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "containerd://2.2.9"},
		},
	}
	// The images are the largest part of a Node.
	for i := range 50 {
		image := fmt.Sprintf("registry.example.com/team/image-%02d", i)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{SizeBytes: 100 << 20, Names: []string{image + ":v1", image + "@sha256:" + strings.Repeat("0123456789abcdef", 4)}})
	}
	_, err := kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	return err
}

func (s *site) makeRevision(ctx context.Context, namespace, name string) (*servingv1.Revision, error) {
	revision := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: functionLabels(name, "")}}
	revision.Spec.Containers = []corev1.Container{userContainer()}
	return s.knative.ServingV1().Revisions(namespace).Create(ctx, revision, metav1.CreateOptions{})
}

func functionLabels(revision string, uid types.UID) map[string]string {
	service := strings.TrimSuffix(revision, "-00001")
	labels := map[string]string{
		api.EnabledLabel: api.EnabledValue, "app": revision,
		serving.ConfigurationLabelKey: service, serving.ConfigurationGenerationLabelKey: "1", serving.ServiceLabelKey: service,
	}
	if uid != "" {
		labels[serving.RevisionLabelKey], labels[serving.RevisionUID] = revision, string(uid)
		labels["pod-template-hash"] = "5d4b6f7c9d"
	}
	return labels
}

func userContainer() corev1.Container {
	return corev1.Container{
		Name: api.UserContainer, Image: "registry.example.com/team/function@sha256:" + strings.Repeat("0123456789abcdef", 4),
		Resources: corev1.ResourceRequirements{Requests: requests.List(), Limits: allocation.List()},
	}
}

// functionPod returns a pod like those that Knative makes.
func functionPod(namespace, name, node, revision string, uid types.UID) *corev1.Pod {
	pod := plainPod(namespace, name, node)
	pod.Labels = functionLabels(revision, uid)
	pod.Annotations = map[string]string{"autoscaling.knative.dev/target-burst-capacity": "-1", "serving.knative.dev/creator": "system:admin"}
	user := userContainer()
	user.Ports = []corev1.ContainerPort{{Name: servingv1.UserPortName, ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}
	user.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/wait-for-drain", Port: intstr.FromInt32(8022)}}}
	for _, key := range []string{"PORT", "K_REVISION", "K_CONFIGURATION", "K_SERVICE"} {
		user.Env = append(user.Env, corev1.EnvVar{Name: key, Value: revision})
	}
	pod.Spec.Containers = []corev1.Container{user, queueProxy(revision)}
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(300))
	return pod
}

// queueProxy returns the larger half of such a pod.
func queueProxy(revision string) corev1.Container {
	c := corev1.Container{
		Name: api.QueueProxyContainer, Image: "registry.example.com/knative/queue@sha256:" + strings.Repeat("fedcba9876543210", 4),
		Resources: corev1.ResourceRequirements{Requests: api.Resources{CPUMilli: 25}.List()},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8012),
			HTTPHeaders: []corev1.HTTPHeader{{Name: "K-Network-Probe", Value: "queue"}}}}},
	}
	for name, port := range map[string]int32{"http-queueadm": 8022, "http-autometric": 9090, "http-usermetric": 9091, "queue-port": 8012, "https-port": 8112} {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: name, ContainerPort: port, Protocol: corev1.ProtocolTCP})
	}
	long := map[string]string{
		"SERVING_LOGGING_CONFIG":  `{"level":"info","development":false,"outputPaths":["stdout"],"errorOutputPaths":["stderr"],"encoding":"json","encoderConfig":{"timeKey":"timestamp","levelKey":"severity","nameKey":"logger","callerKey":"caller","messageKey":"message","stacktraceKey":"stacktrace","lineEnding":"","levelEncoder":"","timeEncoder":"iso8601","durationEncoder":"","callerEncoder":""}}`,
		"SERVING_READINESS_PROBE": `{"tcpSocket":{"port":8080,"host":"127.0.0.1"},"successThreshold":1}`,
		"OBSERVABILITY_CONFIG":    `{"tracing":{"protocol":"none"},"metrics":{"protocol":"prometheus"},"runtime":{"profiling":"disabled","exportInterval":"30s"},"requestMetrics":{"protocol":"http/protobuf"}}`,
	}
	for _, key := range []string{
		"SERVING_NAMESPACE", "SERVING_SERVICE", "SERVING_CONFIGURATION", "SERVING_REVISION", "QUEUE_SERVING_PORT", "QUEUE_SERVING_TLS_PORT",
		"CONTAINER_CONCURRENCY", "REVISION_TIMEOUT_SECONDS", "REVISION_RESPONSE_START_TIMEOUT_SECONDS", "REVISION_IDLE_TIMEOUT_SECONDS",
		"SERVING_LOGGING_CONFIG", "SERVING_LOGGING_LEVEL", "SERVING_REQUEST_LOG_TEMPLATE", "SERVING_ENABLE_REQUEST_LOG", "SERVING_ENABLE_PROBE_REQUEST_LOG",
		"SYSTEM_NAMESPACE", "USER_PORT", "SERVING_READINESS_PROBE", "ROOT_CA", "ENABLE_HTTP2_AUTO_DETECTION", "ENABLE_HTTP_FULL_DUPLEX",
		"ENABLE_MULTI_CONTAINER_PROBES", "OBSERVABILITY_CONFIG",
	} {
		value := revision
		if long[key] != "" {
			value = long[key]
		}
		c.Env = append(c.Env, corev1.EnvVar{Name: key, Value: value})
	}
	for key, path := range map[string]string{"SERVING_POD": "metadata.name", "SERVING_POD_IP": "status.podIP", "HOST_IP": "status.hostIP"} {
		c.Env = append(c.Env, corev1.EnvVar{Name: key, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}})
	}
	return c
}

func plainPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", UID: "1ebc04ab-9a2c-4b0c-8a0e-3a4b7a7a7b0e", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{
			NodeName:           node,
			ServiceAccountName: "default",
			Containers:         []corev1.Container{{Name: "main", Image: "registry.example.com/team/main:v1", Resources: corev1.ResourceRequirements{Requests: requests.List()}}},
		},
	}
}
