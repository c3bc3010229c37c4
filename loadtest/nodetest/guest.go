package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	servingclient "knative.dev/serving/pkg/client/clientset/versioned"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
)

const (
	// optDir has the files that the machine gets along with this program.
	optDir = "/opt/libra"
	// statePath is the file that survives a reboot.
	statePath = "/var/lib/node-test.json"

	pauseImage     = "dev.local/pause:1"
	libraNamespace = "libra-system"
	agentNamespace = "libra-node"

	upLimit = 4 * time.Minute
)

// guest is the test on the machine itself.
type guest struct {
	start   time.Time
	images  map[string]string
	config  *rest.Config
	kube    kubernetes.Interface
	knative servingclient.Interface
	pools   *pool.Redis
	// allocatable is the node's CPU for pods, in milli CPU.
	allocatable int64
	running     map[string]running // by the function's key
	begun       int                // invocations, by their numbers
	state       state
}

// state is what the test knows about its cases, on disk.
type state struct {
	Outcomes []outcome `json:"outcomes"`
	// Rebooting means that the machine was rebooted in the middle of a case.
	Rebooting bool `json:"rebooting"`
}

func newGuest() *cobra.Command {
	var only []string
	cmd := &cobra.Command{
		Use:    "guest",
		Short:  "Run cases on the emulated machine: for node-test run only",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			g := &guest{start: time.Now(), running: map[string]running{}}
			err := g.run(cmd.Context(), only)
			if err != nil {
				g.say("ended early: %v", err)
				g.tell()
			}
			// The program that waits for the machine waits for this.
			return errors.Join(err, exec.Command("systemctl", "poweroff", "--no-block").Run())
		},
	}
	cmd.Flags().StringSliceVar(&only, "only", nil, "cases to run")
	return cmd
}

// say prints a line of progress.
func (g *guest) say(format string, args ...any) {
	fmt.Printf("[%4.0f s] %s\n", time.Since(g.start).Seconds(), fmt.Sprintf(format, args...))
}

func (g *guest) run(ctx context.Context, only []string) error {
	if err := g.connect(ctx); err != nil {
		return err
	}
	data, err := os.ReadFile(statePath)
	if err == nil {
		err = json.Unmarshal(data, &g.state)
	} else if errors.Is(err, os.ErrNotExist) {
		err = g.install(ctx)
	}
	if err != nil {
		return err
	}
	if err := g.libraRuns(ctx); err != nil {
		return err
	}
	if err := g.eventually(ctx, "the functions", upLimit, g.functionsRun); err != nil {
		return err
	}
	if err := g.noteWeights(); err != nil {
		return err
	}
	return g.cases(ctx, only)
}

func (g *guest) connect(ctx context.Context) error {
	data, err := os.ReadFile(filepath.Join(optDir, "images.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &g.images); err != nil {
		return err
	}
	if g.config, err = clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")); err != nil {
		return err
	}
	g.config.QPS, g.config.Burst = 50, 100
	if g.kube, err = kubernetes.NewForConfig(g.config); err != nil {
		return err
	}
	if g.knative, err = servingclient.NewForConfig(g.config); err != nil {
		return err
	}
	return g.eventually(ctx, "the API server and the node", upLimit, func(ctx context.Context) error {
		node, err := g.kube.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == "Ready" && c.Status == "True" {
				g.allocatable = node.Status.Allocatable.Cpu().MilliValue()
				g.say("the node runs kubelet %s, %s and Linux %s", node.Status.NodeInfo.KubeletVersion, node.Status.NodeInfo.ContainerRuntimeVersion, node.Status.NodeInfo.KernelVersion)
				return nil
			}
		}
		return errors.New("the node is not Ready")
	})
}

// install turns Libra on and deploys the functions.
func (g *guest) install(ctx context.Context) error {
	patch := []byte(`{"data": {"mode": "full"}}`)
	if _, err := g.kube.CoreV1().ConfigMaps(libraNamespace).Patch(ctx, "config-libra", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	g.say("set Libra's mode to full")
	return g.deploy(ctx)
}

// libraRuns waits until all of Libra's parts are ready.
func (g *guest) libraRuns(ctx context.Context) error {
	if err := g.eventually(ctx, "Libra's parts", upLimit, func(ctx context.Context) error {
		for _, d := range []string{"redis", "libra-resizer"} {
			deployment, err := g.kube.AppsV1().Deployments(libraNamespace).Get(ctx, d, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if ready, all := deployment.Status.ReadyReplicas, *deployment.Spec.Replicas; ready < all {
				return fmt.Errorf("%d of %d pods of deployment %s are ready", ready, all, d)
			}
		}
		_, err := g.agentScope(ctx)
		return err
	}); err != nil {
		return err
	}
	if g.pools != nil {
		g.pools.Close() //nolint:errcheck // it is made anew
	}
	service, err := g.kube.CoreV1().Services(libraNamespace).Get(ctx, "redis", metav1.GetOptions{})
	if err != nil {
		return err
	}
	g.pools = pool.NewRedis(redisconn.MustParse(service.Spec.ClusterIP + ":6379"))
	return g.eventually(ctx, "the pool's opening", upLimit, func(ctx context.Context) error {
		s, err := g.pools.Read(ctx, nodeName)
		if err == nil && !s.Open {
			err = errors.New("the pool is closed")
		}
		return err
	})
}

// agentScope returns the cgroup of the ready agent.
func (g *guest) agentScope(ctx context.Context) (scope, error) {
	pods, err := g.kube.CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=libra-agent"})
	if err != nil {
		return scope{}, err
	}
	for _, pod := range pods.Items {
		for _, s := range pod.Status.ContainerStatuses {
			if _, id, ok := strings.Cut(s.ContainerID, "://"); ok && s.Ready && pod.DeletionTimestamp == nil {
				return findScope(id)
			}
		}
	}
	return scope{}, errors.New("the agent is not ready")
}

// noteWeights records the weights of all pods, as those that the kubelet
// gave them.
func (g *guest) noteWeights() error {
	for key, r := range g.running {
		weight, err := r.scope.weight()
		if err != nil {
			return err
		}
		r.weight = weight
		g.running[key] = r
	}
	return nil
}

// eventually retries do until it returns no error, for as long as limit.
func (g *guest) eventually(ctx context.Context, what string, limit time.Duration, do func(context.Context) error) error {
	began, said := time.Now(), time.Now()
	var last error
	err := retry(ctx, limit, func(ctx context.Context) error {
		if last = do(ctx); last != nil && time.Since(said) > 15*time.Second {
			said = time.Now()
			g.say("waiting for %s: %v", what, last)
		}
		return last
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: not within %.0f s: %w", what, time.Since(began).Seconds(), last)
	}
	return nil
}

// tell prints what may explain a failure.
func (g *guest) tell() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, words := range [][]string{
		{"kubectl", "get", "pods", "-A", "-o", "wide"},
		{"kubectl", "-n", agentNamespace, "logs", "daemonset/libra-agent", "--tail=20"},
		{"kubectl", "-n", agentNamespace, "logs", "daemonset/libra-agent", "--previous", "--tail=20"},
		{"kubectl", "-n", libraNamespace, "logs", "deployment/libra-resizer", "--all-pods", "--tail=20"},
		{"kubectl", "-n", libraNamespace, "logs", "deployment/libra-resizer", "--all-pods", "--previous", "--tail=20"},
		{"kubectl", "get", "events", "-A", "--field-selector=type=Warning", "--sort-by=.lastTimestamp"},
		{"journalctl", "-u", "kubelet", "-n", "30", "--no-pager"},
		{"journalctl", "-u", "containerd", "-n", "15", "--no-pager"},
	} {
		out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
		fmt.Printf("$ %s (%v)\n%s\n", strings.Join(words, " "), err, out)
	}
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
