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

// LogOptions choose what Logs prints.
type LogOptions struct {
	Follow bool
	Lines  int
}

// Logs is a command that prints the log of a component of the node, or of a
// workload on it. name is a component, or a workload as "name",
// "namespace/name", or either with a kind before it ("deploy/name").
func (c Cluster) Logs(ctx context.Context, name string, o LogOptions) (*exec.Cmd, error) {
	lines := strconv.Itoa(o.Lines)
	if slices.Contains(ComponentNames(), name) {
		path := logPath(c.Layout, name)
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("%s has no log yet: %w", name, err)
		}
		args := []string{"-n", lines, path}
		if o.Follow {
			args = append([]string{"-F"}, args...)
		}
		return exec.CommandContext(ctx, "tail", args...), nil
	}
	api, err := newAPI(c.Layout)
	if err != nil {
		return nil, unknownLog(name, nil)
	}
	workloads, err := api.workloads(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w (and the workloads cannot be listed: %w)", unknownLog(name, nil), err)
	}
	kind, found, ok := findWorkload(workloads, name)
	if !ok {
		return nil, unknownLog(name, workloads)
	}
	return Kubectl(ctx, c.Layout, "logs", "-n", found.Namespace, kind+"/"+found.Name,
		"--all-containers", "--prefix", "--tail="+lines, "--follow="+strconv.FormatBool(o.Follow)), nil
}

// findWorkload finds the one workload that name means.
func findWorkload(workloads map[string][]objectMeta, name string) (kind string, found objectMeta, ok bool) {
	kinds := workloadKinds
	for prefix, k := range map[string]string{"deploy/": "deployments", "ds/": "daemonsets", "sts/": "statefulsets"} {
		if rest, has := strings.CutPrefix(name, prefix); has {
			kinds, name = []string{k}, rest
			break
		}
	}
	matches := 0
	for _, k := range kinds {
		for _, m := range workloads[k] {
			if name == m.Name || name == m.Namespace+"/"+m.Name {
				kind, found = k, m
				matches++
			}
		}
	}
	return kind, found, matches == 1
}

func unknownLog(name string, workloads map[string][]objectMeta) error {
	accepted := ComponentNames()
	for _, k := range workloadKinds {
		for _, m := range workloads[k] {
			accepted = append(accepted, m.Namespace+"/"+m.Name)
		}
	}
	more := ""
	if workloads == nil {
		more = "; with the box running also the deployments on it"
	}
	return fmt.Errorf("no log is called %q; it must be one of: %s%s", name, strings.Join(accepted, ", "), more)
}
