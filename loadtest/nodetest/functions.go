package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
)

const (
	functionPort = 8080
	mebibyte     = 1 << 20
	holdImage    = "libra-fn-hold"
)

// function is a pod as Knative makes it, and the Revision that says what it is owed.
type function struct {
	namespace, name string
	owed            api.Resources
}

// key returns the pool's name for its pod.
func (f function) key() string { return f.namespace + "/" + f.name }

// functions has one that lends and one that borrows, under each source. The donor has more than one
// thread can use, so that a probe does not make it take back what it lends, even on a machine as
// slow as an emulated one.
var (
	donor    = function{namespace: "of-owners", name: "donor", owed: owed(1500)}
	borrower = function{namespace: "of-owners", name: "borrower", owed: owed(300)}
	first    = function{namespace: "of-node", name: "first", owed: owed(300)}
	second   = function{namespace: "of-node", name: "second", owed: owed(300)}

	functions = []function{donor, borrower, first, second}
)

func owed(cpuMilli int64) api.Resources {
	return api.Resources{CPUMilli: cpuMilli, MemoryBytes: 96 * mebibyte}
}

func (f function) labels() map[string]string {
	return map[string]string{
		api.EnabledLabel: api.EnabledValue, serving.RevisionLabelKey: f.name, serving.ConfigurationLabelKey: f.name, serving.ServiceLabelKey: f.name,
	}
}

func (f function) container(image string) corev1.Container {
	return corev1.Container{
		Name: api.UserContainer, Image: image,
		Ports: []corev1.ContainerPort{{Name: servingv1.UserPortName, ContainerPort: functionPort}},
		Resources: corev1.ResourceRequirements{
			Limits:   f.owed.List(),
			Requests: api.Resources{CPUMilli: 100, MemoryBytes: 32 * mebibyte}.List(),
		},
	}
}

func (f function) revision(image string) *servingv1.Revision {
	return &servingv1.Revision{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: f.name, Labels: f.labels()},
		Spec:       servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{f.container(image)}}},
	}
}

func (f function) pod(image string, of *servingv1.Revision) *corev1.Pod {
	user := f.container(image)
	user.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(functionPort)}},
		PeriodSeconds: 1,
	}
	user.LivenessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(functionPort)}},
		PeriodSeconds: 5, TimeoutSeconds: 5,
	}
	grace := int64(2)
	labels := f.labels()
	labels[serving.RevisionUID] = string(of.UID)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: f.name, Labels: labels},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{
				user,
				// Without limits, like Knative's sidecar.
				{Name: api.QueueProxyContainer, Image: pauseImage, Resources: corev1.ResourceRequirements{Requests: api.Resources{CPUMilli: 25}.List()}},
			},
		},
	}
}

// deploy creates the functions, and returns when they run.
func (g *guest) deploy(ctx context.Context) error {
	image := g.images[holdImage]
	for namespace, source := range map[string]api.Source{donor.namespace: api.SourceOwners, first.namespace: api.SourceNode} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{api.SourceLabel: string(source)}}}
		if _, err := g.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
		// A namespace gets its ServiceAccount a moment after it is created.
		if err := g.eventually(ctx, "the account of namespace "+namespace, upLimit, func(ctx context.Context) error {
			_, err := g.kube.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
			return err
		}); err != nil {
			return err
		}
	}
	for _, f := range functions {
		revision, err := g.knative.ServingV1().Revisions(f.namespace).Create(ctx, f.revision(image), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("revision %s: %w", f.key(), err)
		}
		if _, err := g.kube.CoreV1().Pods(f.namespace).Create(ctx, f.pod(image, revision), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("pod %s: %w", f.key(), err)
		}
	}
	return g.eventually(ctx, "the functions", 3*time.Minute, g.functionsRun)
}

// functionsRun returns an error unless all functions are ready. It looks up their cgroups again.
func (g *guest) functionsRun(ctx context.Context) error {
	for _, f := range functions {
		pod, err := g.kube.CoreV1().Pods(f.namespace).Get(ctx, f.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := userStatus(pod)
		if status == nil || !status.Ready || pod.Status.PodIP == "" {
			return fmt.Errorf("pod %s is not ready: %s", f.key(), strings.Join(states(pod), ", "))
		}
		_, id, _ := strings.Cut(status.ContainerID, "://")
		s, err := findScope(id)
		if err != nil {
			return err
		}
		g.running[f.key()] = running{scope: s, ip: pod.Status.PodIP, restarts: status.RestartCount, weight: g.running[f.key()].weight}
	}
	return nil
}

// states says what each container of a pod does.
func states(pod *corev1.Pod) []string {
	var all []string
	for _, s := range pod.Status.ContainerStatuses {
		state := "runs"
		switch {
		case s.State.Waiting != nil:
			state = "waits: " + s.State.Waiting.Reason
		case s.State.Terminated != nil:
			state = "has ended: " + s.State.Terminated.Reason
		}
		all = append(all, fmt.Sprintf("%s %s, after %d restarts", s.Name, state, s.RestartCount))
	}
	if len(all) == 0 {
		all = append(all, "it has no containers yet")
	}
	return all
}

func userStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	for i, s := range pod.Status.ContainerStatuses {
		if s.Name == api.UserContainer {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// running is the state of a function that runs.
type running struct {
	scope    scope
	ip       string
	restarts int32
	weight   int64 // that the kubelet gave its pod
}

// callPatience is how much longer than it should a request may take. On a slow machine, an emulated one takes more
// than half a minute to use as much memory as requests here do.
const callPatience = 2 * time.Minute

// call has the function at ip hold mib mebibytes for as long as last.
func call(ctx context.Context, ip string, mib int, last time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, last+callPatience)
	defer cancel()
	body := fmt.Sprintf("%d %v", mib, last)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://%s:%d", ip, functionPort), strings.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(answer), fmt.Sprintf(`"mib":%d`, mib))) {
		err = fmt.Errorf("%s: %.200s", response.Status, answer)
	}
	return err
}
