package kubectl

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

const root = "../.."

var update = flag.Bool("update", false, "write the golden files")

// plane is an API server that commands are run against.
type plane struct {
	*testing.T
	client     client.Client
	config     *rest.Config
	kubeconfig string
}

// It is one test, because starting an API server takes longer than all the rest.
func TestCommands(t *testing.T) {
	resources := filepath.Join(apiservertest.Module(t, "knative.dev/serving"), "config/core/300-resources")
	config := apiservertest.Start(t, filepath.Join(root, "manifests/base/crds"), filepath.Join(resources, "service.yaml"), filepath.Join(resources, "revision.yaml"))
	config.QPS = -1
	kube, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{T: t, client: kube, config: config, kubeconfig: apiservertest.Kubeconfig(t, config)}
	for _, namespace := range []string{settings.Namespace, settings.AgentNamespace, swap.Namespace} {
		p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	}
	p.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}})
	p.deployment(settings.Namespace, "libra-resizer", "libra-resizer", 2, 2)
	p.deployment(swap.Namespace, swap.Name, "registry.test/libra-activator@sha256:0", 2, 1)
	for _, test := range []struct {
		name string
		of   func(*plane)
	}{
		{"reports", (*plane).reports},
		{"modes", (*plane).modes},
		{"all modes", (*plane).allModes},
		{"modes of a namespace's admin", (*plane).modesOfAdmin},
		{"rollouts", (*plane).rollouts},
		{"restores", (*plane).restores},
		{"completion", (*plane).completion},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := *p
			of.T = t
			test.of(&of)
		})
	}
}

func (p *plane) do(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *plane) create(o client.Object) {
	p.Helper()
	p.do(p.client.Create(p.Context(), o))
}

// status writes the status of an object.
func (p *plane) status(o client.Object) {
	p.Helper()
	p.do(p.client.Status().Update(p.Context(), o))
}

// namespace creates a namespace.
func (p *plane) namespace(name string) {
	p.Helper()
	p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

func (p *plane) deployment(namespace, name, image string, want, ready int32) {
	p.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &want, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: image}}}},
		},
	}
	p.create(d)
	d.Status = appsv1.DeploymentStatus{Replicas: want, ReadyReplicas: ready}
	p.status(d)
}

// service creates a Service that opted in. No Knative acts on it.
func (p *plane) service(namespace, name string, annotations map[string]string) *servingv1.Service {
	p.Helper()
	s := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	s.Spec.Template.Labels = map[string]string{api.EnabledLabel: api.EnabledValue}
	s.Spec.Template.Annotations = annotations
	s.Spec.Template.Spec.Containers = []corev1.Container{{Image: "registry.test/f"}}
	p.create(s)
	return s
}

func list(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

func (p *plane) revision(namespace, name string, limits corev1.ResourceList) *servingv1.Revision {
	p.Helper()
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{api.EnabledLabel: api.EnabledValue}}}
	r.Spec.ContainerConcurrency = ptr.To[int64](1)
	r.Spec.Containers = []corev1.Container{{Image: "registry.test/f", Resources: corev1.ResourceRequirements{Limits: limits, Requests: list("100m", "64Mi")}}}
	p.create(r)
	return r
}

func (p *plane) report(namespace string, age time.Duration, functions ...v1alpha1.FunctionStatus) {
	p.Helper()
	r := &v1alpha1.FunctionReport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.FunctionReportName}}
	p.create(r)
	r.Status = v1alpha1.FunctionReportStatus{
		Updated: metav1.NewTime(time.Now().Add(-age)), Window: metav1.Duration{Duration: 5 * time.Minute}, Functions: functions,
	}
	var couldLend, wouldBorrow api.Resources
	for _, f := range functions {
		r.Status.Total.Functions++
		r.Status.Total.Requests += f.Requests
		couldLend = couldLend.Add(api.FromList(f.CouldLend))
		wouldBorrow = wouldBorrow.Add(api.FromList(f.WouldBorrow))
	}
	r.Status.Total.CouldLend, r.Status.Total.WouldBorrow = couldLend.List(), wouldBorrow.List()
	p.status(r)
}

// run runs a command as it is typed.
func (p *plane) run(args ...string) (out string, err error) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	command := NewRoot(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr})
	command.SetArgs(append([]string{"--kubeconfig", p.kubeconfig}, args...))
	err = command.ExecuteContext(ctx)
	return stdout.String(), err
}

// ago matches what differs from run to run.
var ago = regexp.MustCompile(`written \S+ ago`)

// golden expects that a command prints the golden file.
func (p *plane) golden(name string, args ...string) {
	p.Helper()
	out, err := p.run(args...)
	if err != nil {
		p.Errorf("%v: %v", args, err)
		return
	}
	isGolden(p.T, name, ago.ReplaceAllString(out, "written 3s ago"))
}

// isGolden compares what a command prints with a file of testdata, or with -update writes it.
func isGolden(t *testing.T, name, printed string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(printed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), printed); diff != "" {
		t.Errorf("%s (-want, +got):\n%s", path, diff)
	}
}

// refuses expects an error with words in it.
func (p *plane) refuses(words string, args ...string) {
	p.Helper()
	if out, err := p.run(args...); err == nil || !strings.Contains(err.Error(), words) {
		p.Errorf("%v: the error is %v, want %q in it; it printed:\n%s", args, err, words, out)
	}
}

// prints expects words in the output of a command.
func (p *plane) prints(words string, args ...string) {
	p.Helper()
	if out, err := p.run(args...); err != nil || !strings.Contains(out, words) {
		p.Errorf("%v: the error is %v, want none and %q in\n%s", args, err, words, out)
	}
}
