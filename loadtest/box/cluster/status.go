package cluster

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Status prints what runs, what is not ready and where things are.
func (c Cluster) Status(ctx context.Context, w io.Writer) error {
	p, found, err := findInit(c.Layout)
	if err != nil {
		return err
	}
	if !found {
		fmt.Fprintln(w, "The box does not run. Start it with `box up`.")
		return nil
	}
	defer p.close()
	if err := c.printComponents(w, p.pid); err != nil {
		return err
	}
	fmt.Fprintln(w)
	c.printCluster(ctx, w)
	fmt.Fprintf(w, "\nkubeconfig  %s\nlogs        %s\n", c.Layout.Kubeconfig(), c.Layout.Logs())
	return nil
}

func (c Cluster) printComponents(w io.Writer, initPID int) error {
	states, err := readStates(c.Layout)
	if err != nil {
		return err
	}
	running, err := children(initPID)
	if err != nil {
		return err
	}
	boot, err := bootTime()
	if err != nil {
		return err
	}
	first, _, err := readUsage(initPID, boot)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tPID\tUP\tRSS MiB\tSTATE")
	row := func(name string, u usage, state string) {
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\n", name, u.pid, time.Since(u.startedAt).Round(time.Second), u.rssBytes>>20, state)
	}
	row(initName, first, "running")
	for _, s := range states {
		if u, ok := running[s.PID]; ok && s.Exit == "" {
			row(s.Name, u, "running")
			continue
		}
		fmt.Fprintf(table, "%s\t-\t-\t-\tended: %s\n", s.Name, s.Exit)
	}
	return table.Flush()
}

func (c Cluster) printCluster(ctx context.Context, w io.Writer) {
	api, err := newAPI(c.Layout)
	if err != nil {
		fmt.Fprintln(w, err)
		return
	}
	ready, reason, err := api.nodeReady(ctx)
	switch {
	case err != nil:
		fmt.Fprintf(w, "The API server does not answer: %v\n", err)
		return
	case ready:
		fmt.Fprintf(w, "node %s is Ready\n", NodeName)
	default:
		fmt.Fprintf(w, "node %s is not Ready: %s\n", NodeName, reason)
	}
	pods, err := api.pods(ctx)
	if err != nil {
		fmt.Fprintf(w, "The pods cannot be listed: %v\n", err)
		return
	}
	troubled := 0
	for _, p := range pods {
		if t := trouble(p); t != "" {
			troubled++
			fmt.Fprintf(w, "pod %s/%s: %s\n", p.Namespace, p.Name, t)
		}
	}
	fmt.Fprintf(w, "%d of %d pods are ready\n", len(pods)-troubled, len(pods))
}
