//go:build bench

package scheduler

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

var (
	benchNodes  = flag.Int("nodes", 1000, "nodes")
	benchPods   = flag.Int("pods", 100, "pods that each profile places per block")
	benchBlocks = flag.Int("blocks", 60, "blocks, each of all profiles")
	benchOut    = flag.String("out", "../../../out/bench-scheduler", "folder for the results")
	benchCommit = flag.String("commit", "unknown", "commit to name in the results")
	benchSeed   = flag.Uint64("seed", 1, "random seed for the orders")
)

// stock is a profile like the default scheduler's, which runs in the same process. It looks at as many nodes as that
// scheduler does, however many Libra's profile looks at.
const (
	stock        = "stock"
	stockProfile = "- schedulerName: " + stock + "\n  percentageOfNodesToScore: 0\n"
)

// TestThroughput compares how fast the plugin's profile and stock, in turn, place pods of a function that borrows.
func TestThroughput(t *testing.T) {
	var nodes []string
	for i := range *benchNodes {
		nodes = append(nodes, fmt.Sprintf("node-%04d", i))
	}
	c := startCluster(t, api.SourceNode, stockProfile, nodes...)
	c.beat(nodes)
	c.observed("hungry", 3*cores)
	c.await("all is heard of", func() bool {
		pic := c.plugin.follower.now()
		_, known := c.plugin.follower.leanings.needOf("shop/hungry")
		return pic != nil && len(pic.nodes) == len(nodes) && known && c.plugin.settings.For("default").ModeOf(nil) == api.ModeFull
	})
	arms := []string{stock, stock, profile}
	c.place(stock) // what is slow only once is not measured
	c.place(profile)
	seconds := make([][]float64, len(arms))
	for _, order := range stats.Orders(*benchBlocks, len(arms), *benchSeed) {
		for _, arm := range order {
			seconds[arm] = append(seconds[arm], c.place(arms[arm]).Seconds())
		}
	}
	// The ratio of two throughputs is the inverse of the ratio of the times.
	ratio := func(of int) stats.Interval {
		return stats.Bootstrap(*benchBlocks, *benchSeed, func(counts []int) float64 {
			var base, arm float64
			for i, n := range counts {
				base, arm = base+float64(n)*seconds[0][i], arm+float64(n)*seconds[of][i]
			}
			return base / arm
		})
	}
	libra, again := ratio(2), ratio(1)
	perSecond := func(arm int) float64 {
		return float64(*benchPods) / stats.Mean(seconds[arm]).Estimate
	}
	verdict, why := stats.Goal{Bound: 0.9, AtLeast: true}.Ratio(libra, again, stats.Tolerance)
	t.Logf("pods per second: stock %.0f, stock again %.0f, %s %.0f; ratio %.3f (%.3f to %.3f), stock again %.3f; at least 0.9: %s",
		perSecond(0), perSecond(1), profile, perSecond(2), libra.Estimate, libra.Low, libra.High, again.Estimate, stats.Said(verdict, why))
	c.do(os.MkdirAll(*benchOut, 0o755))
	c.do(report.Results{Machine: fmt.Sprintf("%d CPUs", runtime.NumCPU()), Commit: *benchCommit, Seed: *benchSeed, Metrics: map[string]float64{
		"scheduler_throughput_ratio": libra.Estimate, "scheduler_throughput_ratio_low": libra.Low, "scheduler_throughput_ratio_high": libra.High,
		"stock_again_ratio": again.Estimate, "pods_per_second": perSecond(2), "stock_pods_per_second": perSecond(0), "nodes": float64(*benchNodes),
	}}.Write(*benchOut))
}

// beat sends, every two seconds, a heartbeat of each node's agent with the CPU that is idle there.
func (c *cluster) beat(nodes []string) {
	c.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	beats := make([]pool.Heartbeat, len(nodes))
	for i, node := range nodes {
		state, err := c.redis.Read(ctx, node)
		c.do(err)
		beats[i] = pool.Heartbeat{
			Agent: node, Epoch: state.Epoch, Whole: true, Lendable: api.Resources{CPUMilli: 64 * cores},
			Capacity: api.Resources{CPUMilli: 64 * cores}, Idle: api.Resources{CPUMilli: int64(i%64) * cores}, Pods: map[string]int64{},
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(2 * time.Second / time.Duration(len(nodes)))
		defer ticker.Stop()
		for i := 0; ; i++ {
			if _, err := c.redis.Heartbeat(ctx, nodes[i%len(nodes)], beats[i%len(nodes)]); err != nil && ctx.Err() == nil {
				c.Log("a heartbeat:", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	c.Cleanup(func() {
		cancel()
		<-done
	})
}

// place returns how long it takes to create and place a number of pods, and then removes them.
func (c *cluster) place(by string) time.Duration {
	c.Helper()
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(16)
	for range *benchPods {
		p := c.newPod()
		p.Spec.SchedulerName = by
		p.Labels = labelsOf("hungry")
		group.Go(func() error {
			_, err := c.kube.CoreV1().Pods(namespace).Create(c.Context(), p, metav1.CreateOptions{})
			return err
		})
	}
	c.do(group.Wait())
	c.await("all pods are placed", func() bool {
		waiting, err := c.kube.CoreV1().Pods(namespace).List(c.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=", Limit: 1})
		c.do(err)
		return len(waiting.Items) == 0
	})
	took := time.Since(began)
	zero := int64(0)
	c.do(c.kube.CoreV1().Pods(namespace).DeleteCollection(c.Context(), metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{}))
	c.await("all pods are gone", func() bool {
		left, err := c.kube.CoreV1().Pods(corev1.NamespaceAll).List(c.Context(), metav1.ListOptions{Limit: 1})
		c.do(err)
		return len(left.Items) == 0
	})
	return took
}
