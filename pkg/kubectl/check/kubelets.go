package check

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// mostKubelets is how many kubelets are asked at most, mostKubeletsAtOnce of them at a time.
	mostKubelets       = 50
	mostKubeletsAtOnce = 10

	staticPolicy = "static"
)

// errKubelets means that the caller may not ask kubelets. The right to do so gives much power: no role of ours has it.
var errKubelets = errors.New("kubelets tell this only to callers that have the right to get nodes/proxy")

// kubelet is what a kubelet says about itself.
type kubelet struct {
	node             string
	cgroupVersion    int // 0 when it does not say
	cgroupDriver     string
	cpuManagerPolicy string
}

// allKubelets asks the kubelets of the nodes that the agent runs on, in a large cluster only the first ones. It
// fails if one cannot be asked.
func (c *Cluster) allKubelets(ctx context.Context) ([]kubelet, error) {
	return c.kubelets.get(func() ([]kubelet, error) {
		nodes, err := c.allNodes(ctx)
		if err != nil {
			return nil, err
		}
		var mu sync.Mutex
		var all []kubelet
		asking, ctx := errgroup.WithContext(ctx)
		asking.SetLimit(mostKubeletsAtOnce)
		asked := 0
		for i := range nodes {
			if !takesAgent(&nodes[i]) {
				continue
			}
			if asked++; asked > mostKubelets {
				break
			}
			asking.Go(func() error {
				k, err := c.askKubelet(ctx, nodes[i].Name)
				if apierrors.IsForbidden(err) {
					return errKubelets
				}
				if err != nil {
					return fmt.Errorf("asking the kubelet of node %s: %w", nodes[i].Name, err)
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, k)
				return nil
			})
		}
		return all, asking.Wait()
	})
}

func (c *Cluster) askKubelet(ctx context.Context, node string) (kubelet, error) {
	k := kubelet{node: node}
	text, err := c.kubelet(ctx, node, "configz")
	if err != nil {
		return k, err
	}
	var configz struct {
		KubeletConfig struct {
			CgroupDriver     string `json:"cgroupDriver"`
			CPUManagerPolicy string `json:"cpuManagerPolicy"`
		} `json:"kubeletconfig"`
	}
	if err := json.Unmarshal(text, &configz); err != nil {
		return k, fmt.Errorf("reading configz: %w", err)
	}
	k.cgroupDriver, k.cpuManagerPolicy = configz.KubeletConfig.CgroupDriver, configz.KubeletConfig.CPUManagerPolicy
	if text, err = c.kubelet(ctx, node, "metrics"); err != nil {
		return k, err
	}
	k.cgroupVersion, err = cgroupVersion(text)
	return k, err
}

// cgroupVersion returns the version in a kubelet's metrics, or 0.
func cgroupVersion(metrics []byte) (int, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(metrics))
	if err != nil {
		return 0, fmt.Errorf("reading the kubelet's metrics: %w", err)
	}
	for _, m := range families["kubelet_cgroup_version"].GetMetric() {
		return int(max(m.GetGauge().GetValue(), m.GetUntyped().GetValue())), nil
	}
	return 0, nil
}

func nodeCgroups(ctx context.Context, c *Cluster) ([]Finding, error) {
	kubelets, err := c.allKubelets(ctx)
	if err != nil {
		return nil, err
	}
	old, unknown, fit := groups{}, groups{}, groups{}
	for _, k := range kubelets {
		switch k.cgroupVersion {
		case 0:
			unknown.add(k.cgroupDriver, k.node)
		case 1:
			old.add(k.cgroupDriver, k.node)
		default:
			fit.add(fmt.Sprintf("v%d, driver %s", k.cgroupVersion, k.cgroupDriver), k.node)
		}
	}
	var found []Finding
	old.each(func(driver string, nodes []string, about Object) {
		found = append(found, warning(about, "# on the kernel's command line of the nodes:\nsystemd.unified_cgroup_hierarchy=1",
			"cgroup v1, driver %s: Libra works, but does not slow down a container that waits for memory, or reclaim cold memory", driver))
	})
	unknown.each(func(driver string, nodes []string, about Object) {
		found = append(found, warning(about, fmt.Sprintf("kubectl debug node/%s -it --image=busybox:1.37 -- stat -fc %%T /host/sys/fs/cgroup  # cgroup2fs is v2", nodes[0]),
			"not known: the kubelet does not say which version of cgroups it uses; its driver is %s", driver))
	})
	fit.each(func(is string, _ []string, about Object) { found = append(found, fine(about, "cgroup %s", is)) })
	return found, nil
}

// reserveCPU has its own field manager, because an apply removes what its manager applied before and leaves out now.
const reserveCPU = `kubectl apply --server-side --force-conflicts --field-manager libra-cpuReserve -f - <<< '{"apiVersion":"libra.dev/v1alpha1","kind":"HarvestPolicy","metadata":{"namespace":"libra-system","name":"default"},"spec":{"cpuReserve":"<CPUs that are exclusive on a node>"}}'`

func nodeCPUManager(ctx context.Context, c *Cluster) ([]Finding, error) {
	kubelets, err := c.allKubelets(ctx)
	if err != nil {
		return nil, err
	}
	static, shared := groups{}, groups{}
	for _, k := range kubelets {
		if k.cpuManagerPolicy == staticPolicy {
			static.add(k.cpuManagerPolicy, k.node)
		} else {
			shared.add(k.cpuManagerPolicy, k.node)
		}
	}
	var found []Finding
	static.each(func(_ string, nodes []string, about Object) {
		found = append(found, warning(about, reserveCPU,
			"the CPU manager's policy is static: CPUs that are exclusive to containers count as the node's, although no function can use them"))
	})
	shared.each(func(policy string, _ []string, about Object) {
		found = append(found, fine(about, "the CPU manager's policy is %s", cmp.Or(policy, "none")))
	})
	return found, nil
}
