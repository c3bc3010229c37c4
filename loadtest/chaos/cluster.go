package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/containers"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/functions/inputs"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/pkg/settings"
)

const (
	servingNamespace = "knative-serving"
	activatorImage   = "libra-activator"
	gatewayNamespace = "istio-system"
	gatewayService   = "knative-gateway-istio"

	apiTimeout   = 5 * time.Second
	readyTimeout = 2 * time.Minute
)

// place says where to find the pod that does a part's work: the only one or, of several, the
// one that holds their lease.
type place struct {
	namespace, selector, lease string
	// home selects, on a box of several nodes, the pod on the functions' node.
	home bool
}

// places has the parts that run in pods. The kubelet and the API server are processes.
var places = map[part]place{
	activator:  {namespace: servingNamespace, selector: "app=activator"},
	predictor:  {namespace: rig.LibraNamespace, selector: "serving.kserve.io/inferenceservice=libra"},
	redisPart:  {namespace: rig.LibraNamespace, selector: "app=libra-redis"},
	controller: {namespace: rig.LibraNamespace, selector: "app=libra-resizer", lease: "libra-resizer"},
	agent:      {namespace: settings.AgentNamespace, selector: "app=libra-agent", home: true},
}

// components has the box's names for its processes.
var components = map[part]string{kubelet: "kubelet", apiServer: "kube-apiserver"}

// cluster is the box, with Libra and its functions on it.
type cluster struct {
	*rig.Rig
	pool  *pool.Redis
	redis *redis.Client
	box   string // the box's command
	// processes has the processes of components.
	processes map[part]*os.Process
	maxMemory string // of Redis, from its Deployment
}

// newCluster finds everything on the box. It first resumes what an interrupted run may have
// left stopped: while the API server is stopped, nothing else can be found.
func newCluster(ctx context.Context, o rig.Options, box string, out io.Writer) (*cluster, error) {
	status, statusErr := boxStatus(ctx, box)
	processes, err := processesOf(status)
	if err != nil {
		return nil, errors.Join(err, statusErr)
	}
	for _, p := range processes {
		if err := resume(p); err != nil {
			return nil, err
		}
	}
	c := &cluster{box: box, processes: processes}
	if c.Rig, err = rig.Connect(ctx, o, out); err != nil {
		return nil, err
	}
	address, err := c.RedisAddr(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w; `make chaos` installs Libra", err)
	}
	deployment, err := c.Kube.AppsV1().Deployments(rig.LibraNamespace).Get(ctx, "redis", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	args := deployment.Spec.Template.Spec.Containers[0].Args
	at := slices.Index(args, "--maxmemory") + 1
	if at == 0 || at == len(args) {
		return nil, errors.New("deployment/redis has no argument --maxmemory, so chaos could not restore the limit")
	}
	c.maxMemory = args[at]
	c.pool, c.redis = pool.NewRedis(redisconn.MustParse(address)), redis.NewClient(&redis.Options{Addr: address})
	if err := c.mend(ctx); err != nil {
		return nil, err
	}
	// With a pool that this binary cannot read, every pod would seem to be away.
	_, err = c.pool.Read(ctx, c.Home)
	return c, err
}

// boxStatus runs `box status`, which prints the processes first. With a stopped API server,
// it waits no longer for the rest than apiTimeout.
func boxStatus(ctx context.Context, box string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	return exec.CommandContext(ctx, box, "status").Output()
}

// mend undoes what an interrupted run may have left.
func (c *cluster) mend(ctx context.Context) error {
	for _, p := range places {
		pods, err := c.Kube.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{LabelSelector: p.selector})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			for _, s := range pods.Items[i].Status.ContainerStatuses {
				found, err := containers.Find(containerID(s))
				if err != nil {
					continue // it is not running
				}
				processes, err := found.Processes()
				if err != nil {
					continue
				}
				for _, process := range processes {
					if err := resume(process); err != nil {
						return err
					}
				}
			}
		}
	}
	if err := c.bringAllBack(ctx); err != nil {
		return err
	}
	if err := errors.Join(c.disperse(ctx), c.bringWorkerBack(ctx)); err != nil {
		return err
	}
	if _, err := c.ready(ctx, redisPart); err != nil {
		return err
	}
	return c.redis.ConfigSet(ctx, "maxmemory", c.maxMemory).Err()
}

// hasLibra reports whether the activator in place is Libra's.
func (c *cluster) hasLibra(ctx context.Context) (bool, error) {
	d, err := c.Kube.AppsV1().Deployments(servingNamespace).Get(ctx, "activator", metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(container corev1.Container) bool {
		return strings.Contains(container.Image, activatorImage)
	}), nil
}

func (c *cluster) close() { _ = errors.Join(c.pool.Close(), c.redis.Close()) }

// processesOf reads the components' pids from the output of `box status`. With several nodes,
// the kubelet is that of the functions' node.
func processesOf(status []byte) (map[part]*os.Process, error) {
	found := map[part]*os.Process{}
	control := true // until another node is listed
	lines := bufio.NewScanner(bytes.NewReader(status))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 2 && fields[0] == "node" {
			control = fields[1] == rig.Node
			if !control && fields[1] != rig.Worker {
				break
			}
		}
		for p, name := range components {
			if !control && p != kubelet {
				continue
			}
			if len(fields) < 4 || fields[0] != name || fields[3] != "running" {
				continue
			}
			pid, err := strconv.Atoi(fields[1])
			if err != nil || pid <= 1 {
				return nil, fmt.Errorf("box status gives %s the pid %q", name, fields[1])
			}
			if found[p], err = os.FindProcess(pid); err != nil {
				return nil, err
			}
		}
	}
	if len(found) != len(components) {
		return nil, fmt.Errorf("`box status` shows that %d of the %d components %s and %s run: is the box up? It printed:\n%.1000s",
			len(found), len(components), components[kubelet], components[apiServer], status)
	}
	return found, nil
}

func containerID(status corev1.ContainerStatus) string {
	_, id, _ := strings.Cut(status.ContainerID, "://")
	return id
}

// running is a ready container of a part.
type running struct {
	pod      corev1.Pod
	id       string
	restarts int32
}

// ready waits until a part's pod is ready, and returns its container.
func (c *cluster) ready(ctx context.Context, p part) (running, error) {
	return c.readyOf(ctx, places[p], "")
}

// readyOf waits until the pod at a place is ready, and returns its container (of a function,
// the user container). not is the ID of a container that no longer counts.
func (c *cluster) readyOf(ctx context.Context, at place, not string) (found running, err error) {
	err = rig.Eventually(ctx, readyTimeout, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, apiTimeout)
		defer cancel()
		pods, err := c.Kube.CoreV1().Pods(at.namespace).List(ctx, metav1.ListOptions{LabelSelector: at.selector})
		if err != nil {
			return err
		}
		pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
			return p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning || at.home && p.Spec.NodeName != c.Home
		})
		if at.lease != "" {
			lease, err := c.Kube.CoordinationV1().Leases(at.namespace).Get(ctx, at.lease, metav1.GetOptions{})
			if err != nil {
				return err
			}
			holder := ptr.Deref(lease.Spec.HolderIdentity, "")
			pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Name != holder })
			if len(pods.Items) == 0 {
				return fmt.Errorf("none of the running pods has the name of the holder of lease %s, %q", at.lease, holder)
			}
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("%d pods are running, want 1", len(pods.Items))
		}
		for _, s := range pods.Items[0].Status.ContainerStatuses {
			if s.Name == api.QueueProxyContainer {
				if !s.Ready {
					return fmt.Errorf("%s of pod %s is not ready", s.Name, pods.Items[0].Name)
				}
				continue
			}
			found = running{pods.Items[0], containerID(s), s.RestartCount}
			if !s.Ready || found.id == not {
				return fmt.Errorf("container %s of pod %s is not ready, or is still the previous one", s.Name, pods.Items[0].Name)
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("no ready pod %s in %s: %w", at.selector, at.namespace, err)
	}
	return found, err
}

// fresh returns the part's container. If that was restarted before, fresh deletes the pod and
// takes its successor, because the kubelet backs off longer with each restart. With several
// pods, the next one may have been restarted before, too.
func (c *cluster) fresh(ctx context.Context, at place) (running, error) {
	found, err := c.readyOf(ctx, at, "")
	for err == nil && found.restarts > 0 {
		if err := c.Kube.CoreV1().Pods(at.namespace).Delete(ctx, found.pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			return running{}, err
		}
		found, err = c.readyOf(ctx, at, found.id)
	}
	return found, err
}

func placeOf(function string) place {
	return place{namespace: rig.Namespace, selector: serving.ServiceLabelKey + "=" + function}
}

// awaitFunctions waits until each function has a ready pod.
func (c *cluster) awaitFunctions(ctx context.Context) error {
	for _, f := range schedule.All {
		if _, err := c.readyOf(ctx, placeOf(f), ""); err != nil {
			return err
		}
	}
	return nil
}

// newSender finds the gateway and the functions' hosts.
func (c *cluster) newSender(ctx context.Context) (*sender, error) {
	service, err := c.Kube.CoreV1().Services(gatewayNamespace).Get(ctx, gatewayService, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	s := &sender{
		// No proxy, whatever the environment says.
		client:  &http.Client{Transport: &http.Transport{}},
		gateway: "http://" + service.Spec.ClusterIP,
		hosts:   map[string]string{},
		corpus:  inputs.Corpus(),
	}
	for _, f := range schedule.All {
		ksvc, err := c.Knative.ServingV1().Services(rig.Namespace).Get(ctx, f, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("%w; `make chaos` deploys the functions", err)
		}
		if ksvc.Status.URL == nil {
			return nil, fmt.Errorf("service %s/%s has no URL", rig.Namespace, f)
		}
		s.hosts[f] = ksvc.Status.URL.Host
	}
	return s, nil
}
