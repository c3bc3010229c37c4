package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"libra.dev/libra/pkg/api"
)

func trialNamed(name string) trial {
	return trial{name: name, source: api.SourceOwners, faults: []fault{{kind: kinds[0]}}}
}

func good(name string) outcome { return outcome{trial: trialNamed(name), inHand: true, sent: 100} }

func TestBounds(t *testing.T) {
	lost := []request{{function: "plain", err: "503"}}
	onStock := func(o outcome) outcome { o.stock, o.source = true, ""; return o }
	change := func(f func(o *outcome)) outcome { o := good("activator-kill"); f(&o); return o }
	for name, c := range map[string]struct {
		outcomes []outcome
		want     string // in the error; empty when all bounds hold
	}{
		"all hold":         {[]outcome{good("activator-kill")}, ""},
		"excused":          {[]outcome{change(func(o *outcome) { o.failed, o.excused = 2, 2 })}, ""},
		"unexcused":        {[]outcome{change(func(o *outcome) { o.failed, o.unexcused = 1, lost })}, "beyond those of stock: 1"},
		"as with stock":    {[]outcome{change(func(o *outcome) { o.unexcused = lost }), onStock(change(func(o *outcome) { o.unexcused = lost }))}, ""},
		"OOM":              {[]outcome{change(func(o *outcome) { o.oomKills = 1 })}, "OOM"},
		"violation":        {[]outcome{change(func(o *outcome) { o.violations = 1 })}, "violations"},
		"whole in time":    {[]outcome{change(func(o *outcome) { o.whole = wholeWithin })}, ""},
		"whole too late":   {[]outcome{change(func(o *outcome) { o.whole = wholeWithin + time.Second })}, "11.0 s"},
		"at rest in time":  {[]outcome{change(func(o *outcome) { o.settled = wholeWithin })}, ""},
		"at rest too late": {[]outcome{change(func(o *outcome) { o.settled = wholeWithin + time.Second })}, "at rest only 11.0 s"},
		"no loan":          {[]outcome{change(func(o *outcome) { o.inHand = false })}, "on owners: nothing was on loan"},
		"no weight":        {[]outcome{change(func(o *outcome) { o.inHand, o.source = false, api.SourceNode })}, "on node: no weight"},
		"under one of two": {[]outcome{change(func(o *outcome) { o.source = api.SourceNode }), change(func(o *outcome) { o.violations = 1 })},
			"activator-kill on owners: violations of invariants: 1"},
		"it came to nothing":    {[]outcome{change(func(o *outcome) { o.err = errNoTime })}, errNoTime.Error()},
		"stock came to nothing": {[]outcome{good("activator-kill"), onStock(change(func(o *outcome) { o.err = errors.New("no pod") }))}, "no pod"},
	} {
		err := judge(c.outcomes).broken()
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestMetrics(t *testing.T) {
	lost := make([]request, 3)
	first, second, stock, nothing := good("activator-kill"), good("redis-flush"), good("activator-kill"), good("pair-01")
	first.unexcused, first.longestAway, first.oomKills = lost, 2*time.Second, 1
	second.longestAway, second.violations, second.whole = time.Second, 2, 4*time.Second
	stock.stock, stock.source, stock.unexcused = true, "", lost[:1]
	nothing.err = errNoTime
	node := first
	node.source, node.settled, node.below, node.overweight = api.SourceNode, 3*time.Second, 5*time.Second, time.Second
	got := judge([]outcome{first, second, node, nothing, stock}).metrics()
	for name, want := range map[string]float64{
		"extra_failed_requests":        4,
		"owners_extra_failed_requests": 2,
		"node_extra_failed_requests":   2,
		"longest_away_s":               2,
		"oom_kills":                    2,
		"node_oom_kills":               1,
		"violations":                   2,
		"owners_violations":            2,
		"node_violations":              0,
		"sent_requests":                300,
		"whole_after_s":                4,
		"node_whole_after_s":           0,
		"at_rest_after_s":              3,
		"trials":                       3,
		"node_trials":                  1,
		"owners_activator_kill_extra_failed_requests": 2,
		"node_activator_kill_extra_failed_requests":   2,
		"node_activator_kill_at_rest_after_s":         3,
		"node_activator_kill_longest_below_ceiling_s": 5,
		"node_activator_kill_longest_overweight_s":    1,
		"owners_redis_flush_violations":               2,
		"owners_redis_flush_whole_after_s":            4,
		"stock_activator_kill_sent_requests":          100,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if _, ok := got["owners_pair_01_sent_requests"]; ok {
		t.Error("a trial that came to nothing has metrics")
	}
	for name := range got {
		if strings.HasPrefix(name, "activator") || strings.HasPrefix(name, "redis") {
			t.Errorf("%s does not say which source it is of", name)
		}
	}
}

func TestTableHasALineForEachFault(t *testing.T) {
	stock := good("activator-kill")
	stock.stock = true
	node := good("agent-gone")
	node.source = api.SourceNode
	nothing := good("pair-01")
	nothing.err = errors.New("no pod\nat all")
	var table strings.Builder
	if err := judge([]outcome{good("activator-kill"), good("redis-flush"), node, nothing, stock}).write(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"activator-kill", "redis-flush", "agent-gone", "no pod", "node ", "owners ", "Clocks:"} {
		if strings.Count(table.String(), want) == 0 {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
}
