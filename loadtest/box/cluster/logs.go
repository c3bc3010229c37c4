package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// LogOptions say what Logs prints.
type LogOptions struct {
	Follow bool
	Lines  int
	// Node is the node whose component is meant; empty is the control node.
	Node string
}

// Logs returns a command that prints the log of a component of the node, or of
// a Deployment or DaemonSet on it. name is a component, or a workload as
// "name", "namespace/name" or "kind/name".
func (c Cluster) Logs(ctx context.Context, name string, o LogOptions) (*exec.Cmd, error) {
	lines := strconv.Itoa(o.Lines)
	m := alone(c.Layout)
	if o.Node != "" {
		var err error
		if m, err = c.member(o.Node); err != nil {
			return nil, err
		}
	}
	if slices.Contains(m.componentNames(), name) {
		path := logPath(m.layout, name)
		if name == nodeName { // the control node starts it and keeps its log
			path = logPath(c.Layout, m.name())
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("%s has no log yet: %w", name, err)
		}
		args := []string{"-n", lines, path}
		if o.Follow {
			args = append([]string{"-F"}, args...)
		}
		return exec.CommandContext(ctx, "tail", args...), nil
	}
	if m.isWorker() {
		return nil, fmt.Errorf("%.64q is not a component of node %s, want %s", name, m.name(), strings.Join(m.componentNames(), ", "))
	}
	var workloads []workload
	api, err := newAPI(c.Layout)
	if err == nil {
		workloads, err = api.workloads(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; while the box runs, also the workloads on it (listing them failed: %w)", unknownLog(name, nil), err)
	}
	w, ok := findWorkload(workloads, name)
	if !ok {
		return nil, unknownLog(name, workloads)
	}
	return Kubectl(ctx, c.Layout, "logs", "-n", w.namespace, w.kind+"/"+w.name,
		"--all-pods", "--all-containers", "--prefix", "--tail="+lines, "--follow="+strconv.FormatBool(o.Follow)), nil
}

// findWorkload finds the workload that name means, if it is the only one.
func findWorkload(workloads []workload, name string) (found workload, ok bool) {
	matches := 0
	for _, w := range workloads {
		if slices.Contains([]string{w.name, w.namespace + "/" + w.name, w.kind + "/" + w.name}, name) {
			found = w
			matches++
		}
	}
	return found, matches == 1
}

func unknownLog(name string, workloads []workload) error {
	accepted := ComponentNames()
	for _, w := range workloads {
		accepted = append(accepted, w.namespace+"/"+w.name)
	}
	return fmt.Errorf("%q is not the name of one log; it must be one of: %s", name, strings.Join(accepted, ", "))
}
