package pool_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
)

// BenchmarkInvocation measures a Begin and then an End on a node with some in flight and, if
// hungry, with others that want more than there is. redis-us/op is how long both took within Redis,
// without the sockets.
func BenchmarkInvocation(b *testing.B) {
	const standing, hungry = 16, 20
	mate := shared("mate", "mates", time.Hour, need(200, 64))
	for _, bc := range []struct {
		name string
		inv  pool.Invocation
	}{
		{"neither", invocation("x", time.Minute, cpu(0), cpu(0))},
		{"donor", invocation("x", time.Minute, need(600, 384), cpu(0))},
		{"borrower", invocation("x", time.Minute, cpu(0), need(600, 64))},
		{"ranked", ranked("x", "x", time.Second)},
		{"beside another", shared("x", "mates", time.Minute, need(300, 64))},
		{"hungry", invocation("x", time.Minute, need(600, 384), cpu(0))},
	} {
		b.Run(bc.name, func(b *testing.B) {
			addr := redistest.Start(b)
			r := newRedis(b, addr)
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer client.Close()
			ctx := redistest.Context(b)
			pods := []string{bc.inv.Pod, mate.Pod}
			for i := range standing {
				pods = append(pods, fmt.Sprint("default/standing-", i))
			}
			for i := range hungry {
				pods = append(pods, fmt.Sprint("default/hungry-", i))
			}
			openNode(b, r, "node", pods...)
			for i := range standing {
				inv := invocation(fmt.Sprint("standing-", i), time.Hour, need(int64(100*(i%2)), 64), cpu(0))
				if _, err := r.Begin(ctx, "node", inv); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := r.Begin(ctx, "node", mate); err != nil {
				b.Fatal(err)
			}
			for i := range hungry {
				if bc.name != "hungry" {
					break
				}
				inv := invocation(fmt.Sprint("hungry-", i), time.Hour, cpu(0), need(900, 512))
				if _, err := r.Begin(ctx, "node", inv); err != nil {
					b.Fatal(err)
				}
			}
			beat := time.Now()
			if err := client.ConfigResetStat(ctx).Err(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if time.Since(beat) > pool.LeaseTTL/5 {
					openNode(b, r, "node", pods...)
					if err := r.Renew(ctx, "node", mate.Owner); err != nil {
						b.Fatal(err)
					}
					beat = time.Now()
				}
				inv := bc.inv
				inv.ID = strconv.Itoa(i)
				if _, err := r.Begin(ctx, "node", inv); err != nil {
					b.Fatal(err)
				}
				if _, err := r.End(ctx, "node", pool.Ending{ID: inv.ID, Duration: time.Second, Status: 200, BeginAnswered: true}); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(microsInCalls(b, client))/float64(b.N), "redis-us/op")
		})
	}
}

// microsInCalls returns how long functions have taken since the statistics were reset.
func microsInCalls(b *testing.B, client *redis.Client) (micros int64) {
	b.Helper()
	info, err := client.Info(b.Context(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(info) {
		var calls, usec int64
		if n, _ := fmt.Sscanf(line, "cmdstat_fcall:calls=%d,usec=%d", &calls, &usec); n == 2 {
			micros += usec
		}
	}
	return micros
}

// BenchmarkProfiles measures one call for the profiles of 50 nodes, each with ten donors, when all
// have changed or none has. redis-us/node is how long each node took within Redis.
func BenchmarkProfiles(b *testing.B) {
	const nodes, donors = 50, 10
	for _, changed := range []bool{true, false} {
		b.Run(fmt.Sprintf("changed=%t", changed), func(b *testing.B) {
			addr := redistest.Start(b)
			r := newRedis(b, addr)
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer client.Close()
			ctx := redistest.Context(b)
			touch := func() {
				for i := range nodes {
					node := fmt.Sprint("node-", i)
					inv := invocation("touches", 0, cpu(0), cpu(0))
					if _, err := r.Begin(ctx, node, inv); err != nil {
						b.Fatal(err)
					}
					if _, err := r.End(ctx, node, pool.Ending{ID: inv.ID, BeginAnswered: true}); err != nil {
						b.Fatal(err)
					}
				}
			}
			for i := range nodes {
				node := fmt.Sprint("node-", i)
				var pods []string
				for j := range donors {
					pods = append(pods, fmt.Sprint("default/standing-", j))
				}
				openNode(b, r, node, pods...)
				for j := range donors {
					inv := invocation(fmt.Sprint("standing-", j), time.Hour+time.Duration(j)*time.Second, need(100, 64), cpu(0))
					if _, err := r.Begin(ctx, node, inv); err != nil {
						b.Fatal(err)
					}
				}
			}
			var micros int64
			for b.Loop() {
				b.StopTimer()
				if changed {
					touch()
				}
				if err := client.ConfigResetStat(ctx).Err(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				changes, err := r.ReadProfiles(ctx, nil)
				b.StopTimer()
				if err != nil || len(changes[0].Profiles) != nodes || len(changes[0].Profiles[0].Domains["default"].Lends) != donors+1 {
					b.Fatalf("%+v, %v", changes, err)
				}
				micros += microsInCalls(b, client)
				b.StartTimer()
			}
			b.ReportMetric(float64(micros)/float64(b.N*nodes), "redis-us/node")
		})
	}
}
