package scheduler

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// activated takes the pods that are tried again.
type activated chan map[string]*corev1.Pod

func (a activated) Activate(_ klog.Logger, pods map[string]*corev1.Pod) { a <- pods }

func TestPodsThatWaitAreTriedAgain(t *testing.T) {
	queue := make(activated, 1)
	w := newWaiting(klog.Background(), queue)
	w.retry() // nothing waits
	pod, placed, deleted, missed := functionPod(), functionPod(), functionPod(), functionPod()
	placed.Name, deleted.Name, missed.Name = "placed", "deleted", "missed"
	for _, p := range []*corev1.Pod{pod, placed, deleted, missed} {
		w.add(p)
	}
	w.remove(placed)
	w.gone(deleted)
	w.gone(cache.DeletedFinalStateUnknown{Key: "shop/missed", Obj: missed})
	w.retry()
	if got := <-queue; len(got) != 1 || got["shop/cart-1"] != pod {
		t.Errorf("tried again are %v, want the one that waits", got)
	}
	if len(w.pods) != 0 {
		t.Error("it is still waiting")
	}
}

// The scheduler's back-off does not hold for pods that are tried again, so changes that follow each other must not have
// them tried at each.
func TestPodsAreTriedAgainAtMostOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := make(activated, 100)
		w := newWaiting(klog.Background(), queue)
		const changes, apart = 59, 50 * time.Millisecond
		for range changes {
			w.add(functionPod())
			w.retry()
			time.Sleep(apart)
		}
		synctest.Wait()
		if got := len(queue); got != 3 {
			t.Errorf("tried again %d times in %s, want at once and once in each second after that", got, changes*apart)
		}
		for len(queue) > 0 {
			<-queue
		}
		time.Sleep(retryEvery)
		if got := <-queue; len(got) != 1 {
			t.Errorf("the last change had %v tried again, want the pod that waits", got)
		}
		time.Sleep(retryEvery)
		w.add(functionPod())
		w.retry()
		synctest.Wait()
		if len(queue) != 1 {
			t.Error("after a calm second, a change does not have the pod tried again at once")
		}
	})
}
