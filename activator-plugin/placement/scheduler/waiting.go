package scheduler

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// waitingMost bounds how many pods are tried again at once when a policy changes. The others are tried again when the
// scheduler does so by itself, after five minutes at most.
const waitingMost = 10_000

// retryEvery is the least time between two retries, for these pass by the pods' back-off. While a cluster grows, policies
// learn of new nodes many times a second.
const retryEvery = time.Second

// waiting holds the pods that a policy may have refused. They are tried again as soon as policies change, or what
// policies know about nodes. An event of the scheduler's would come too soon, before the change is in force.
type waiting struct {
	logger klog.Logger
	queue  fwk.PodActivator

	mu   sync.Mutex
	pods map[string]*corev1.Pod
	// due says that a retry is about to come, and last is when the last one was.
	due  bool
	last time.Time
}

func newWaiting(logger klog.Logger, queue fwk.PodActivator) *waiting {
	return &waiting{logger: logger, queue: queue, pods: map[string]*corev1.Pod{}}
}

func (w *waiting) add(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pods) < waitingMost {
		w.pods[pod.Namespace+"/"+pod.Name] = pod
	}
}

func (w *waiting) remove(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, pod.Namespace+"/"+pod.Name)
}

// gone takes a deleted pod from an informer. The autoscaler deletes pods that never had a node, and the next ones have
// other names: without this, they would take up the room of those that wait.
func (w *waiting) gone(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.pods, key)
	}
}

// retry has all waiting pods tried again: at once, or a second after the last time. Those that are refused again wait
// again, and those that are gone do not.
func (w *waiting) retry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.due || len(w.pods) == 0 {
		return
	}
	w.due = true
	time.AfterFunc(time.Until(w.last.Add(retryEvery)), w.activate)
}

func (w *waiting) activate() {
	w.mu.Lock()
	pods := w.pods
	w.pods, w.due, w.last = map[string]*corev1.Pod{}, false, time.Now()
	w.mu.Unlock()
	w.queue.Activate(w.logger, pods)
}
