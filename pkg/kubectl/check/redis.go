package check

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"libra.dev/libra/pkg/settings"
)

const (
	redisName      = "redis"
	redisApp       = "libra-redis"
	redisAddrFlag  = "--redis-addr="
	fullOfRedis    = 0.85
	redisContainer = "redis"

	// moreMemory says how in a kustomization: a change in place would make the next upgrade end with a conflict.
	moreMemory = "docs/sizing.md#more-memory-for-redis"
)

var redisObject = Object{"deployment", settings.Namespace, redisName}

var redisChecks = []Check{
	{
		ID: "redis-ready", run: redisReady, installed: true,
		Looks: "Redis: are its pods available? A Redis of your own is not looked at",
	},
	{
		ID: "redis-memory", run: redisMemory, installed: true,
		Looks: "Redis' memory: does Redis refuse writes when it is full, and not evict; is its container's limit above `maxmemory`; how full is it, where the cluster has the metrics API?",
		Fine:  "there is no Redis of Libra's to look at",
	},
}

// redis returns the Deployment that ships with Libra, or nil.
func (c *Cluster) redis(ctx context.Context) (*appsv1.Deployment, error) {
	d := &appsv1.Deployment{}
	found, err := c.get(ctx, settings.Namespace, redisName, d)
	if !found {
		return nil, err
	}
	return d, nil
}

// redisAddress returns the last address of Redis in the resizer's arguments.
func (c *Cluster) redisAddress(ctx context.Context) (address string, err error) {
	d := &appsv1.Deployment{}
	if found, err := c.get(ctx, settings.Namespace, settings.Resizer, d); err != nil || !found {
		return "", err
	}
	for _, container := range d.Spec.Template.Spec.Containers {
		for _, arg := range container.Args {
			if at, ok := strings.CutPrefix(arg, redisAddrFlag); ok {
				address = at
			}
		}
	}
	return address, nil
}

func redisReady(ctx context.Context, c *Cluster) ([]Finding, error) {
	d, err := c.redis(ctx)
	if err != nil {
		return nil, err
	}
	if d != nil {
		return available(redisObject, d), nil
	}
	address, err := c.redisAddress(ctx)
	if err != nil {
		return nil, err
	}
	if address == "" || strings.Contains(address, redisName+"."+settings.Namespace+".") {
		return []Finding{failure(redisObject, applyLibra, "it is not there, and the resizer's Redis is %q: nothing is lent", address)}, nil
	}
	return []Finding{fine(redisObject, "Libra uses another Redis, at %s, which is not looked at: a part that cannot use it says so in its log", address)}, nil
}

func redisMemory(ctx context.Context, c *Cluster) ([]Finding, error) {
	d, err := c.redis(ctx)
	if err != nil || d == nil {
		return nil, err
	}
	index := slices.IndexFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == redisContainer })
	if index < 0 {
		return nil, nil
	}
	container := d.Spec.Template.Spec.Containers[index]
	var found []Finding
	if policy := argument(container.Args, "--maxmemory-policy"); policy != "noeviction" {
		found = append(found, failure(redisObject, applyLibra, "its maxmemory-policy is %q, want noeviction: a loan whose record is evicted may be made twice", policy))
	}
	most, err := redisBytes(argument(container.Args, "--maxmemory"))
	if err != nil {
		return append(found, failure(redisObject, applyLibra, "%v: Redis without a bound grows until the kernel kills it", err)), nil
	}
	limit := container.Resources.Limits.Memory().Value()
	if limit > 0 && limit <= most {
		found = append(found, failure(redisObject, fmt.Sprintf("# Raise limits.memory to %dMi: %s", most*10/7>>20, moreMemory),
			"its container may use %s, want more than maxmemory, which is %dMi: the kernel kills Redis before it is full", container.Resources.Limits.Memory(), most>>20))
	}
	uses, known, err := c.redisUses(ctx)
	switch {
	case err != nil:
		return found, err
	case !known:
		return append(found, fine(redisObject, "maxmemory is %dMi; the cluster does not measure how much of it is used", most>>20)), nil
	case float64(uses) > fullOfRedis*float64(most):
		return append(found, warning(redisObject, "# Raise --maxmemory, and limits.memory to 1.5 times as much: "+moreMemory,
			"it uses %dMi, and maxmemory is %dMi: when it is full it refuses writes, and nothing is lent", uses>>20, most>>20)), nil
	}
	return append(found, fine(redisObject, "it uses %dMi, and maxmemory is %dMi", uses>>20, most>>20)), nil
}

// redisUses returns how much memory the containers of Redis use.
func (c *Cluster) redisUses(ctx context.Context) (bytes int64, known bool, err error) {
	all, err := c.objects(ctx, kindPodMetrics, settings.Namespace)
	if err != nil {
		return 0, false, err
	}
	for _, pod := range all {
		if pod.GetLabels()["app"] != redisApp {
			continue
		}
		containers, _, _ := unstructured.NestedSlice(pod.Object, "containers")
		for _, c := range containers {
			usage, _, _ := unstructured.NestedString(c.(map[string]any), "usage", "memory")
			if q, err := resource.ParseQuantity(usage); err == nil {
				bytes, known = bytes+q.Value(), true
			}
		}
	}
	return bytes, known, nil
}

// argument returns what follows a flag.
func argument(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// redisBytes reads a size as Redis does.
func redisBytes(text string) (int64, error) {
	units := []struct {
		suffix string
		bytes  int64
	}{{"gb", 1 << 30}, {"mb", 1 << 20}, {"kb", 1 << 10}, {"b", 1}, {"", 1}}
	for _, u := range units {
		if number, ok := strings.CutSuffix(strings.ToLower(text), u.suffix); ok {
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil || n <= 0 {
				break
			}
			return n * u.bytes, nil
		}
	}
	return 0, fmt.Errorf("maxmemory is %q, want a size such as 224mb", text)
}
