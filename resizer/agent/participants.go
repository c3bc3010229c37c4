package agent

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"libra.dev/libra/pkg/settings"
)

// participants are the pods of the node that are not bystanders: those that opted in, Libra's
// own, and the platform's, which wait for CPU along with the functions' requests.
type participants struct {
	mu    sync.Mutex
	byPod map[string]string // UID, by namespace/name
	pods  map[string]int    // how many entries have a UID: 1, except for a moment
}

func newParticipants() *participants {
	return &participants{byPod: map[string]string{}, pods: map[string]int{}}
}

func (p *participants) set(pod, uid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(pod)
	p.byPod[pod] = uid
	p.pods[uid]++
}

func (p *participants) remove(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(pod)
}

// drop forgets a pod. The caller holds the lock.
func (p *participants) drop(pod string) {
	uid, ok := p.byPod[pod]
	if !ok {
		return
	}
	delete(p.byPod, pod)
	if p.pods[uid]--; p.pods[uid] == 0 {
		delete(p.pods, uid)
	}
}

func (p *participants) has(uid string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid] > 0
}

// FollowPlatform returns a Runnable that, as long as it runs, keeps the agent from taking pods
// of Libra and of the platform for bystanders.
func (a *Agent) FollowPlatform(client kubernetes.Interface, lending Lending) (manager.Runnable, error) {
	informer := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", a.settings.Node).String()
		}),
		informers.WithTransform(func(obj any) (any, error) {
			if pod, ok := obj.(*corev1.Pod); ok {
				return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}, nil
			}
			return obj, nil
		})).Core().V1().Pods().Informer()
	// What was set last must follow from the latest settings, and a pod that was listed may be deleted before it is set.
	var setting sync.Mutex
	set := func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return
		}
		switch {
		case pod.Namespace == settings.Namespace, pod.Namespace == settings.AgentNamespace, lending.Settings().Platform.Has(pod.Namespace):
			a.participants.set(platformPod(pod), string(pod.UID))
		default:
			a.participants.remove(platformPod(pod))
		}
	}
	setOne := func(obj any) {
		setting.Lock()
		defer setting.Unlock()
		set(obj)
	}
	lending.OnChange(func() {
		setting.Lock()
		defer setting.Unlock()
		for _, obj := range informer.GetStore().List() {
			set(obj)
		}
	})
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    setOne,
		UpdateFunc: func(_, obj any) { setOne(obj) },
		DeleteFunc: func(obj any) {
			setting.Lock()
			defer setting.Unlock()
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				a.participants.remove(platformPod(pod))
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("following the platform's pods: %w", err)
	}
	return manager.RunnableFunc(func(ctx context.Context) error {
		informer.RunWithContext(ctx)
		return nil
	}), nil
}

// platformPod gives a pod of the platform another name than the same pod has as one that opted
// in, so that neither entry removes the other.
func platformPod(pod *corev1.Pod) string { return "platform:" + pod.Namespace + "/" + pod.Name }
