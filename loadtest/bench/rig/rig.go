// Package rig is what the benches on the box share: the connection to the box, functions of their
// own, loans as an activator makes them, and the results.
package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	servingclient "knative.dev/serving/pkg/client/clientset/versioned"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/demo/report"
)

const (
	// Node is the name of the box's only node, or of its control node among several.
	Node = "box"
	// Worker is the node, among several, with the functions of tests and chaos.
	Worker = "w1"
	// Namespace is the namespace of the benches' functions.
	Namespace = "default"
	// LibraNamespace is the namespace of Libra's parts, except the node agents.
	LibraNamespace = "libra-system"

	readyTimeout = 2 * time.Minute
)

// Options are the flags that all benches have.
type Options struct {
	Kubeconfig, Images string
	Out, Commit        string
	Seed               uint64
	Quick              bool
	// Workers allows the box to have workers.
	Workers bool
}

// Bind adds the flags to a command. The results go into the folder out unless the
// user names another.
func (o *Options) Bind(cmd *cobra.Command, out string) {
	f := cmd.Flags()
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of the box, as \"box kubeconfig\" prints it")
	f.StringVar(&o.Images, "images", "out/images.json", "JSON file that maps image names to references, as \"box load\" writes it")
	f.StringVar(&o.Out, "out", out, "folder for the results")
	f.StringVar(&o.Commit, "commit", "unknown", "commit to name in the results")
	f.Uint64Var(&o.Seed, "seed", 1, "random seed")
	f.BoolVar(&o.Quick, "quick", false, "a smoke test: all steps in about a minute, with figures that mean little")
}

// Rig is the box as a bench uses it.
type Rig struct {
	Options
	Kube    kubernetes.Interface
	Knative servingclient.Interface
	Objects dynamic.Interface // Libra's own, for one

	// Home is the node that functions are on.
	Home string

	images map[string]string
	out    io.Writer
	start  time.Time
}

// Connect connects to the box, and to no other cluster.
func Connect(ctx context.Context, o Options, out io.Writer) (*Rig, error) {
	if o.Kubeconfig == "" {
		return nil, errors.New("there is no --kubeconfig: give it that of the box (`box kubeconfig` prints it)")
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	// The box's addresses are on this machine, and nothing else sends its API server so many
	// requests.
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	config.QPS = -1
	r := &Rig{Options: o, out: out, start: time.Now()}
	if r.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if r.Knative, err = servingclient.NewForConfig(config); err != nil {
		return nil, err
	}
	if r.Objects, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	nodes, err := r.nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("the box does not answer (`box up` starts it): %w", err)
	}
	named := func(name string) bool {
		return slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == name })
	}
	switch r.Home = Node; {
	case !named(Node) || len(nodes) > 1 && !named(Worker):
		return nil, fmt.Errorf("the cluster of %s is not the box, and the benches run only on the box", o.Kubeconfig)
	case len(nodes) > 1 && !o.Workers:
		return nil, fmt.Errorf("the box has %d nodes, and this bench needs a box of one: `box up` starts one", len(nodes))
	case len(nodes) > 1:
		r.Home = Worker
	}
	data, err := os.ReadFile(o.Images)
	if err != nil {
		return nil, fmt.Errorf("--images: %w; `box load` writes the file", err)
	}
	if err := json.Unmarshal(data, &r.images); err != nil {
		return nil, fmt.Errorf("--images: %s is not a JSON object from image name to reference: %w", o.Images, err)
	}
	return r, os.MkdirAll(o.Out, 0o755)
}

// Image returns the reference of one of Libra's images.
func (r *Rig) Image(name string) (string, error) {
	if r.images[name] == "" {
		return "", fmt.Errorf("--images: %s does not name %s", r.Images, name)
	}
	return r.images[name], nil
}

// Say writes a line of progress.
func (r *Rig) Say(format string, args ...any) {
	fmt.Fprintf(r.out, "[%4.0f s] %s\n", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}

// Write writes the results and says where they are.
func (r *Rig) Write(ctx context.Context, metrics map[string]float64) error {
	metrics["seconds_total"] = time.Since(r.start).Seconds()
	machine, err := r.machine(ctx)
	if err != nil {
		return err
	}
	results := report.Results{Machine: machine, Commit: r.Commit, Seed: r.Seed, Metrics: metrics}
	if err := results.Write(r.Out); err != nil {
		return err
	}
	r.Say("results: %s/%s", r.Out, report.ResultsFile)
	return nil
}

func (r *Rig) nodes(ctx context.Context) ([]corev1.Node, error) {
	list, err := r.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// machine describes in one line what the box runs on.
func (r *Rig) machine(ctx context.Context) (string, error) {
	nodes, err := r.nodes(ctx)
	if err != nil {
		return "", err
	}
	var said []string
	for _, n := range nodes {
		info := n.Status.NodeInfo
		said = append(said, "the box", fmt.Sprintf("%d CPUs", n.Status.Capacity.Cpu().Value()),
			fmt.Sprintf("%d GiB", n.Status.Capacity.Memory().Value()>>30),
			info.Architecture, "Linux "+info.KernelVersion, "Kubernetes "+info.KubeletVersion)
	}
	if model := machine.CPUModel(); model != "" {
		said = append(said, model)
	}
	return strings.Join(said, ", "), nil
}

// Eventually calls attempt until it succeeds, for at most timeout, and then returns the last error.
func Eventually(ctx context.Context, timeout time.Duration, attempt func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := attempt(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("within %v: %w", timeout, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

const (
	beatEvery   = time.Second
	beatTimeout = 5 * time.Second
	// beatsMissed is a number of missed heartbeats that does not close a node's pool.
	beatsMissed = 3
)

// Beat calls beat for each of n nodes once a second, as the node's agent and the activator would.
// The nodes' calls are spread over the second, at most atOnce at a time. Beat returns nil when ctx
// ends, and an error when too many seconds in succession had one.
func Beat(ctx context.Context, n, atOnce int, beat func(ctx context.Context, i int) error) error {
	failures := 0 // in succession
	for {
		start := time.Now()
		var group errgroup.Group
		group.SetLimit(atOnce)
		for i := range n {
			if Pause(ctx, time.Until(start.Add(beatEvery*time.Duration(i)/time.Duration(n)))) != nil {
				break
			}
			group.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, beatTimeout)
				defer cancel()
				return beat(ctx, i)
			})
		}
		err := group.Wait()
		if ctx.Err() != nil {
			return nil
		}
		failures++
		if err == nil {
			failures = 0
		}
		if failures > beatsMissed {
			return err
		}
		if Pause(ctx, time.Until(start.Add(beatEvery))) != nil {
			return nil
		}
	}
}

// Pause waits for d, or until ctx is done.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Milliseconds is d in the unit of the results.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
