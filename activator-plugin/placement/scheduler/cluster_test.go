package scheduler

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/component-base/configz"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/pkg/settings"
)

const (
	manifests = "../../../manifests"
	profile   = "libra-scheduler"
	namespace = "shop"
)

// cluster is an API server, a Redis with what agents and activators tell it, and the scheduler with the rights and
// the configuration from the manifests.
type cluster struct {
	*testing.T
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	redis   *pool.Redis
	plugin  *Plugin
	pods    int
}

// startCluster starts a cluster with nodes of these names, and further profiles of the scheduler.
func startCluster(t *testing.T, source api.Source, profiles string, nodes ...string) *cluster {
	t.Helper()
	admin := apiservertest.Start(t, filepath.Join(manifests, "base/crds"))
	admin.QPS = -1
	addr := redistest.Start(t)
	c := &cluster{T: t, kube: kubernetes.NewForConfigOrDie(admin), dynamic: dynamic.NewForConfigOrDie(admin), redis: pool.NewRedis(redisconn.MustParse(addr))}
	t.Cleanup(func() { c.redis.Close() })
	for _, name := range []string{namespace, settings.Namespace} {
		_, err := c.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		c.do(err)
	}
	_, err := c.kube.CoreV1().ConfigMaps(settings.Namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: settings.ConfigMap}, Data: map[string]string{"mode": "full", "source": string(source)},
	}, metav1.CreateOptions{})
	c.do(err)
	c.allow()
	for _, name := range nodes {
		c.addNode(name)
	}
	c.schedule(admin, addr, profiles)
	return c
}

func (c *cluster) do(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func read[T any](c *cluster, path string) *T {
	c.Helper()
	text, err := os.ReadFile(filepath.Join(manifests, path))
	c.do(err)
	into := new(T)
	c.do(yaml.UnmarshalStrict(text, into))
	return into
}

// allow gives the scheduler's account the rights that the manifests give it.
func (c *cluster) allow() {
	c.Helper()
	create := metav1.CreateOptions{}
	roles, namespaced := c.kube.RbacV1(), settings.Namespace
	_, err := roles.ClusterRoles().Create(c.Context(), read[rbacv1.ClusterRole](c, "scheduler/clusterrole.yaml"), create)
	c.do(err)
	for _, file := range []string{"", "-kube-scheduler", "-volume-scheduler"} {
		_, err = roles.ClusterRoleBindings().Create(c.Context(), read[rbacv1.ClusterRoleBinding](c, "scheduler/clusterrolebinding"+file+".yaml"), create)
		c.do(err)
	}
	for _, file := range []string{"scheduler/role.yaml", "base/settings/role.yaml"} {
		_, err = roles.Roles(namespaced).Create(c.Context(), read[rbacv1.Role](c, file), create)
		c.do(err)
	}
	for _, file := range []string{"", "-settings"} {
		_, err = roles.RoleBindings(namespaced).Create(c.Context(), read[rbacv1.RoleBinding](c, "scheduler/rolebinding"+file+".yaml"), create)
		c.do(err)
	}
}

func (c *cluster) addNode(name string) {
	c.Helper()
	_, err := c.kube.CoreV1().Nodes().Create(c.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("500"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}, metav1.CreateOptions{})
	c.do(err)
	c.taint(name, false) // the API server taints a new node until a controller finds it ready
}

// schedule runs the scheduler until the test ends.
func (c *cluster) schedule(admin *rest.Config, redis, profiles string) {
	c.Helper()
	dir := c.TempDir()
	kubeconfig, config := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "scheduler.yaml")
	c.do(clientcmd.WriteToFile(kubeconfigOf(admin), kubeconfig))
	text := read[corev1.ConfigMap](c, "scheduler/configmap.yaml").Data["scheduler.yaml"]
	c.do(os.WriteFile(config, []byte(text+profiles+"clientConnection: {kubeconfig: "+kubeconfig+", qps: 5000, burst: 5000}\n"), 0o600))

	opts := options.NewOptions()
	for _, set := range opts.Flags.FlagSets {
		if flag := set.Lookup("config"); flag != nil {
			c.do(flag.Value.Set(config))
		}
	}
	opts.SecureServing.BindPort = 0
	c.do(opts.ComponentGlobalsRegistry.Set())
	ctx, cancel := context.WithCancel(context.Background())
	completed, sched, err := app.Setup(ctx, opts, app.WithPlugin(Name, func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		made, err := (&Options{RedisAddr: redis}).New(ctx, args, handle)
		c.plugin, _ = made.(*Plugin)
		return made, err
	}))
	if err != nil {
		cancel()
		c.Fatal(err)
	}
	// A process that loses its lease ends. That is not tested here.
	completed.LeaderElection = nil
	completed.ComponentConfig.LeaderElection.LeaderElect = false
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = app.Run(ctx, completed, sched) // it says that it has ended
	}()
	c.Cleanup(func() {
		cancel()
		<-done
		configz.Delete("componentconfig") // so that another can run in this process
	})
}

// kubeconfigOf returns a kubeconfig for the scheduler's account.
func kubeconfigOf(admin *rest.Config) clientcmdapi.Config {
	config := *clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: "https://" + strings.TrimPrefix(admin.Host, "https://"), CertificateAuthorityData: admin.CAData}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: admin.CertData, ClientKeyData: admin.KeyData,
		Impersonate:       "system:serviceaccount:" + settings.Namespace + ":libra-scheduler",
		ImpersonateGroups: []string{"system:serviceaccounts", "system:serviceaccounts:" + settings.Namespace, "system:authenticated"},
	}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	return config
}

const cores = 1000 // milli

// work puts a pod of a function in flight on a node, with that much surplus or want.
func (c *cluster) work(node, id string, surplus, want int64) {
	c.Helper()
	ctx := redistest.Context(c)
	state, err := c.redis.Read(ctx, node)
	c.do(err)
	name := namespace + "/" + id
	beat := pool.Heartbeat{
		Agent: "agent-" + node, Epoch: state.Epoch, Whole: true, Lendable: api.Resources{CPUMilli: 64 * cores, MemoryBytes: 64 << 30},
		Capacity: api.Resources{CPUMilli: 64 * cores, MemoryBytes: 64 << 30}, Idle: api.Resources{CPUMilli: 8 * cores, MemoryBytes: 8 << 30},
		Pods: map[string]int64{}, Rested: []string{}, RestedAt: state.Now,
	}
	if id != "" {
		beat.Pods[name], beat.Rested = 0, []string{name}
	}
	if open, err := c.redis.Heartbeat(ctx, node, beat); err != nil || !open {
		c.Fatalf("a heartbeat opens %s: %t, %v", node, open, err)
	}
	if id != "" {
		_, err := c.redis.Begin(ctx, node, pool.Invocation{
			ID: id, Function: name, Pod: name, Domain: namespace, Owner: "activator", Allocation: api.Resources{CPUMilli: 40 * cores}, Duration: time.Hour,
			Surplus: api.Resources{CPUMilli: surplus}, Want: api.Resources{CPUMilli: want},
		})
		c.do(err)
	}
	// Keep it alive as the agent and the activator do.
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = wait.PollUntilContextCancel(ctx, time.Second/2, false, func(ctx context.Context) (bool, error) {
			beat.Rested = nil
			if _, err := c.redis.Heartbeat(ctx, node, beat); err != nil && ctx.Err() == nil {
				c.Errorf("a heartbeat of %s: %v", node, err)
			}
			if err := c.redis.Renew(ctx, node, "activator"); err != nil && ctx.Err() == nil {
				c.Errorf("renewing what is on %s: %v", node, err)
			}
			return false, nil
		})
	}()
	c.Cleanup(func() {
		cancel()
		<-done
	})
}

// observed has invocations of a function observed that were predicted to need that much.
func (c *cluster) observed(configuration string, milli int64) {
	c.Helper()
	for range 3 {
		c.do(c.redis.Observe(redistest.Context(c), api.Observation{
			Ended: api.Ended{Configuration: namespace + "/" + configuration, Predicted: api.Resources{CPUMilli: milli}},
			Peak:  api.Resources{CPUMilli: cores},
		}))
	}
}

// pod creates a pod of a function with one core.
func (c *cluster) pod(function string, labels ...string) *corev1.Pod {
	c.Helper()
	return c.podOf(func(p *corev1.Pod) {
		p.Labels = labelsOf(function)
		for i := 0; i < len(labels); i += 2 {
			p.Labels[labels[i]] = labels[i+1]
		}
	})
}

func labelsOf(function string) map[string]string {
	return map[string]string{api.EnabledLabel: api.EnabledValue, serving.ConfigurationLabelKey: function, serving.RevisionLabelKey: function + "-00001"}
}

func (c *cluster) podOf(change func(*corev1.Pod)) *corev1.Pod {
	c.Helper()
	p := c.newPod()
	change(p)
	p, err := c.kube.CoreV1().Pods(namespace).Create(c.Context(), p, metav1.CreateOptions{})
	c.do(err)
	return p
}

// newPod returns a pod that has not been created yet.
func (c *cluster) newPod() *corev1.Pod {
	c.pods++
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", c.pods), Namespace: namespace},
		Spec: corev1.PodSpec{
			SchedulerName: profile, TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers: []corev1.Container{{Name: api.UserContainer, Image: "function", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
				Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			}}},
		},
	}
}

// await polls until is returns true.
func (c *cluster) await(what string, is func() bool) {
	c.Helper()
	err := wait.PollUntilContextTimeout(c.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return is(), nil })
	if err != nil {
		c.Fatalf("waiting until %s: %v", what, err)
	}
}

func (c *cluster) get(p *corev1.Pod) *corev1.Pod {
	c.Helper()
	p, err := c.kube.CoreV1().Pods(namespace).Get(c.Context(), p.Name, metav1.GetOptions{})
	c.do(err)
	return p
}

// placed waits until a pod is placed, and returns its node.
func (c *cluster) placed(p *corev1.Pod) (node string) {
	c.Helper()
	c.await(p.Name+" is placed", func() bool {
		node = c.get(p).Spec.NodeName
		return node != ""
	})
	return node
}

// remove removes a pod, so that the next pod finds the nodes as this one did.
func (c *cluster) remove(p *corev1.Pod) {
	c.Helper()
	c.do(c.kube.CoreV1().Pods(namespace).Delete(c.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
}

// refused waits until a pod is refused, and returns why.
func (c *cluster) refused(p *corev1.Pod, wants string) (message string) {
	c.Helper()
	c.await(p.Name+" is refused with "+wants, func() bool {
		for _, condition := range c.get(p).Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
				message = condition.Message
			}
		}
		return strings.Contains(message, wants)
	})
	return message
}

func (c *cluster) apply(name, spec string) {
	c.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{}}
	c.do(yaml.Unmarshal([]byte("spec: "+spec), &u.Object))
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("PlacementPolicy"))
	u.SetName(name)
	_, err := c.dynamic.Resource(v1alpha1.GroupVersion.WithResource("placementpolicies")).Namespace(namespace).
		Apply(c.Context(), name, u, metav1.ApplyOptions{FieldManager: "test", Force: true})
	c.do(err)
}

// This is one test, because starting an API server takes longer than all of it.
func TestOnACluster(t *testing.T) {
	c := startCluster(t, api.SourceOwners, "", "lends", "lacks", "rests")
	for name, test := range map[string]func(*cluster){
		"borrowers go where it is lent, and donors where it lacks": (*cluster).placesByNeed,
		"pods stay where a policy says":                            (*cluster).placesByPolicy,
	} {
		t.Run(name, func(t *testing.T) {
			test(&cluster{T: t, kube: c.kube, dynamic: c.dynamic, redis: c.redis, plugin: c.plugin, pods: 100 * len(name)})
		})
	}
}

func (c *cluster) placesByNeed() {
	c.work("lends", "lender", 30*cores, 0)
	c.work("lacks", "lacker", 0, 30*cores)
	c.work("rests", "", 0, 0)
	c.observed("hungry", 3*cores)
	c.observed("modest", cores/10)
	c.await("all is heard of", func() bool {
		pic := c.plugin.follower.now()
		if pic == nil || len(pic.nodes) != 3 {
			return false
		}
		surplus, _ := pic.nodes["lends"].inShop()
		_, lacks := pic.nodes["lacks"].inShop()
		_, hungry := c.plugin.follower.leanings.needOf("shop/hungry")
		_, modest := c.plugin.follower.leanings.needOf("shop/modest")
		return hungry && modest && surplus > 0 && lacks > 0 && c.plugin.settings.For(namespace).ModeOf(nil) == api.ModeFull
	})
	for function, want := range map[string]string{"hungry": "lends", "modest": "lacks"} {
		for range 3 {
			p := c.pod(function)
			if node := c.placed(p); node != want {
				c.Errorf("a pod of %s goes to the node that %s, want the one that %s", function, node, want)
			}
			c.remove(p)
		}
	}
	// A pod that did not opt in goes where the default scheduler would place it.
	stranger := c.podOf(func(p *corev1.Pod) {
		p.Labels = map[string]string{serving.ConfigurationLabelKey: "hungry"}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"rests"}},
			}},
		}}}}
	})
	if node := c.placed(stranger); node != "rests" {
		c.Errorf("a pod that did not opt in is on the node that %s, want the one that it prefers", node)
	}
}

func (c *cluster) placesByPolicy() {
	c.apply("there", "{followup: fail, blocks: [{workers: [{node: rests}]}]}")
	c.apply("rather", "{blocks: [{workers: [{node: rests}]}, {workers: [{node: lacks}]}]}")
	c.apply("nowhere", "{followup: fail, blocks: [{workers: [{node: gone}]}]}")
	nowhere := c.firstRefused("nowhere") // until it is in force, pods are placed anywhere
	c.refused(nowhere, "placement policy shop/nowhere names no existing node")
	for _, policy := range []string{"there", "rather"} {
		for range 3 {
			if node := c.placed(c.pod("query", api.PlacementLabel, policy)); node != "rests" {
				c.Errorf("a pod with the policy %s is on the node that %s, want the one that rests", policy, node)
			}
		}
	}
	// When its node has a taint, a pod goes to no node that its policy does not name.
	c.taint("rests", true)
	full := c.firstRefused("there") // until the scheduler has seen the taint
	c.refused(full, "2 node(s) not named by placement policy shop/there")
	if node := c.placed(c.pod("query", api.PlacementLabel, "rather")); node != "lacks" {
		c.Errorf("a pod whose first block is full is on the node that %s, want the one that lacks", node)
	}
	c.taint("rests", false)
	if node := c.placed(full); node != "rests" {
		c.Errorf("a pod that waited for a node is on the one that %s, want the one that rests", node)
	}
	// An edit applies to pods that wait.
	c.apply("nowhere", "{followup: fail, blocks: [{workers: [{node: lends}]}]}")
	if node := c.placed(nowhere); node != "lends" {
		c.Errorf("after the edit, a pod that waited is on the node that %s, want the one that lends", node)
	}
}

// firstRefused creates pods with a policy one after the other, and returns the first that is refused.
func (c *cluster) firstRefused(policy string) (pod *corev1.Pod) {
	c.Helper()
	c.await("a pod with the policy "+policy+" is refused", func() bool {
		pod = c.pod("query", api.PlacementLabel, policy)
		refused := false
		c.await(pod.Name+" is placed or refused", func() bool {
			p := c.get(pod)
			refused = len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == corev1.ConditionFalse
			return refused || p.Spec.NodeName != ""
		})
		if !refused {
			c.remove(pod)
		}
		return refused
	})
	return pod
}

func (c *cluster) taint(name string, has bool) {
	c.Helper()
	node, err := c.kube.CoreV1().Nodes().Get(c.Context(), name, metav1.GetOptions{})
	c.do(err)
	node.Spec.Taints = nil
	if has {
		node.Spec.Taints = []corev1.Taint{{Key: "full", Effect: corev1.TaintEffectNoSchedule}}
	}
	_, err = c.kube.CoreV1().Nodes().Update(c.Context(), node, metav1.UpdateOptions{})
	c.do(err)
}
