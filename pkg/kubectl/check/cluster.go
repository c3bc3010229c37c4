package check

import (
	"context"
	"errors"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

// These kinds are read only where the cluster has them.
var (
	kindRevision         = servingv1.SchemeGroupVersion.WithKind("Revision")
	kindInferenceService = schema.GroupVersionKind{Group: "serving.kserve.io", Version: "v1beta1", Kind: "InferenceService"}
	kindPodMetrics       = schema.GroupVersionKind{Group: "metrics.k8s.io", Version: "v1beta1", Kind: "PodMetrics"}
	kindPodMonitor       = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "PodMonitor"}
	kindPrometheusRule   = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "PrometheusRule"}
	kindPlacementPolicy  = v1alpha1.GroupVersion.WithKind("PlacementPolicy")
	kindHarvestPolicy    = v1alpha1.GroupVersion.WithKind("HarvestPolicy")
)

// Cluster is what checks look at. It reads what several of them need only once.
type Cluster struct {
	// Installed says that Libra is on the cluster.
	Installed bool

	client    client.Client
	version   func() (*version.Info, error)
	kubelet   func(ctx context.Context, node, path string) ([]byte, error)
	namespace string // of the functions that are looked at; all when it is empty

	nodes      once[[]corev1.Node]
	namespaces once[map[string]corev1.Namespace]
	functions  once[[]function]
	pods       once[[]corev1.Pod]
	activator  once[*appsv1.Deployment]
	settings   once[settings.Settings]
	policies   once[map[string]v1alpha1.HarvestPolicy]
	placement  once[map[types.NamespacedName]bool]
	kubelets   once[[]kubelet]
}

// NewCluster connects to the cluster of a config. Checks look at the functions of a namespace, or of all namespaces if
// it is empty. It returns an error if the API server does not answer.
func NewCluster(config *rest.Config, namespace string) (*Cluster, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if _, err := kube.Discovery().ServerVersion(); err != nil {
		return nil, fmt.Errorf("asking the API server at %s for its version: %w", config.Host, err)
	}
	reads, err := client.New(config, client.Options{Scheme: NewScheme()})
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		client: reads, version: kube.Discovery().ServerVersion, namespace: namespace,
		kubelet: func(ctx context.Context, node, path string) ([]byte, error) {
			return kube.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix(path).DoRaw(ctx)
		},
	}
	c.Installed, err = c.has(kindPlacementPolicy)
	return c, err
}

// NewScheme returns a scheme with every kind of object that the commands read or write.
func NewScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(servingv1.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}

// once reads a value once, for all callers.
type once[T any] struct {
	read  sync.Once
	value T
	err   error
}

func (o *once[T]) get(read func() (T, error)) (T, error) {
	o.read.Do(func() { o.value, o.err = read() })
	return o.value, o.err
}

// has reports whether the cluster knows a kind. That takes no rights but discovery.
func (c *Cluster) has(kind schema.GroupVersionKind) (bool, error) {
	_, err := c.client.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	return err == nil, err
}

// get reads an object, and returns false if there is none.
func (c *Cluster) get(ctx context.Context, namespace, name string, into client.Object) (bool, error) {
	err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// objects returns the objects of a kind in a namespace, or in all if it is empty. It returns none if the
// cluster does not know the kind.
func (c *Cluster) objects(ctx context.Context, kind schema.GroupVersionKind, namespace string) ([]unstructured.Unstructured, error) {
	if known, err := c.has(kind); err != nil || !known {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := c.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// configMap returns a ConfigMap, which is empty if there is none.
func (c *Cluster) configMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	cm := &corev1.ConfigMap{}
	_, err := c.get(ctx, namespace, name, cm)
	return cm, err
}

func (c *Cluster) allNodes(ctx context.Context) ([]corev1.Node, error) {
	return c.nodes.get(func() ([]corev1.Node, error) {
		var list corev1.NodeList
		err := c.client.List(ctx, &list)
		return list.Items, err
	})
}

func (c *Cluster) allNamespaces(ctx context.Context) (map[string]corev1.Namespace, error) {
	return c.namespaces.get(func() (map[string]corev1.Namespace, error) {
		var list corev1.NamespaceList
		err := c.client.List(ctx, &list)
		byName := make(map[string]corev1.Namespace, len(list.Items))
		for _, ns := range list.Items {
			byName[ns.Name] = ns
		}
		return byName, err
	})
}

// functionPods returns the pods of functions.
func (c *Cluster) functionPods(ctx context.Context) ([]corev1.Pod, error) {
	return c.pods.get(func() ([]corev1.Pod, error) {
		var list corev1.PodList
		err := c.client.List(ctx, &list, client.InNamespace(c.namespace), client.MatchingLabels{api.EnabledLabel: api.EnabledValue})
		return list.Items, err
	})
}

// theActivator returns the activator's Deployment, or nil.
func (c *Cluster) theActivator(ctx context.Context) (*appsv1.Deployment, error) {
	return c.activator.get(func() (*appsv1.Deployment, error) {
		d := &appsv1.Deployment{}
		found, err := c.get(ctx, swap.Namespace, swap.Name, d)
		if !found {
			return nil, err
		}
		return d, nil
	})
}

// settingsInForce returns the settings of a part of Libra that starts now: refused values are the defaults.
func (c *Cluster) settingsInForce(ctx context.Context) (settings.Settings, error) {
	return c.settings.get(func() (settings.Settings, error) {
		s, cm := settings.Absent, &corev1.ConfigMap{}
		found, err := c.get(ctx, settings.Namespace, settings.ConfigMap, cm)
		if found {
			s, _ = settings.Parse(cm.Data) // a check of its own tells what is refused
		}
		policies, policiesErr := c.harvestPolicies(ctx)
		s, _ = s.WithDefault(policies[settings.Namespace].Spec)
		return s, errors.Join(err, policiesErr)
	})
}

// harvestPolicies returns the policies by namespace, or none if the cluster does not know the kind.
func (c *Cluster) harvestPolicies(ctx context.Context) (map[string]v1alpha1.HarvestPolicy, error) {
	return c.policies.get(func() (map[string]v1alpha1.HarvestPolicy, error) {
		if known, err := c.has(kindHarvestPolicy); err != nil || !known {
			return nil, err
		}
		var list v1alpha1.HarvestPolicyList
		err := c.client.List(ctx, &list)
		byNamespace := make(map[string]v1alpha1.HarvestPolicy, len(list.Items))
		for _, p := range list.Items {
			byNamespace[p.Namespace] = p
		}
		return byNamespace, err
	})
}

// placementPolicies has the names of the PlacementPolicies, and those of the ClusterPlacementPolicies without a namespace.
func (c *Cluster) placementPolicies(ctx context.Context) (map[types.NamespacedName]bool, error) {
	return c.placement.get(func() (map[types.NamespacedName]bool, error) {
		if known, err := c.has(kindPlacementPolicy); err != nil || !known {
			return nil, err
		}
		var policies v1alpha1.PlacementPolicyList
		var ofCluster v1alpha1.ClusterPlacementPolicyList
		if err := errors.Join(c.client.List(ctx, &policies, client.InNamespace(c.namespace)), c.client.List(ctx, &ofCluster)); err != nil {
			return nil, err
		}
		names := map[types.NamespacedName]bool{}
		for _, p := range policies.Items {
			names[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = true
		}
		for _, p := range ofCluster.Items {
			names[types.NamespacedName{Name: p.Name}] = true
		}
		return names, nil
	})
}

// lendsOfOwners returns where the source is set to owners, for a namespace or for some nodes; empty if it is not. It
// fails if the caller may not read that.
func (c *Cluster) lendsOfOwners(ctx context.Context, namespace string) (where string, err error) {
	nodes, nodesErr := c.allNodes(ctx)
	namespaces, namespacesErr := c.allNamespaces(ctx)
	policies, policiesErr := c.harvestPolicies(ctx)
	s, settingsErr := c.settingsInForce(ctx)
	if err := errors.Join(nodesErr, namespacesErr, policiesErr, settingsErr); err != nil {
		return "", err
	}
	for _, n := range nodes {
		if n.Labels[api.SourceLabel] == string(api.SourceOwners) {
			return "label " + api.SourceLabel + " of node " + n.Name, nil
		}
	}
	source, by := s.SourceOf(nil, namespaces[namespace].Labels, policies[namespace].Spec)
	switch {
	case source != api.SourceOwners:
		return "", nil
	case by == "policy":
		return "source in HarvestPolicy " + namespace + "/" + v1alpha1.HarvestPolicyName, nil
	case by == "namespace":
		return "label " + api.SourceLabel + " of namespace " + namespace, nil
	case policies[settings.Namespace].Spec.Source != "":
		return "source in HarvestPolicy " + settings.Namespace + "/" + v1alpha1.HarvestPolicyName, nil
	}
	return "source in ConfigMap " + settings.Namespace + "/" + settings.ConfigMap, nil
}
