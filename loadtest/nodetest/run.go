package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// outcomeLine begins each line in which the machine reports the outcome of a case.
const outcomeLine = "outcome: "

// node is a machine to test on.
type node struct{ kubelet, runtime string }

// nodes has one node for each kubelet. One of them has the default runtime of CRI-O.
var nodes = []node{{"1.36", "runc"}, {"1.35", "crun"}}

func newRun() *cobra.Command {
	var box, out string
	var kubelets, only []string
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Boot the machines one after the other, and run all cases on each",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			chosen, err := choose(kubelets)
			if err != nil {
				return err
			}
			found := map[string][]outcome{}
			var errs []error
			for _, n := range chosen {
				args := []string{
					"machine", "--kubelet", n.kubelet, "--runtime", n.runtime, "--program", self, "--limit", limit.String(),
					"--console", filepath.Join(out, "console-"+n.kubelet+".log"), "--", "guest",
				}
				if len(only) > 0 {
					args = append(args, "--only", strings.Join(only, ","))
				}
				outcomes, err := onMachine(cmd.Context(), cmd.OutOrStdout(), box, args)
				if err != nil {
					errs = append(errs, fmt.Errorf("kubelet %s: %w", n.kubelet, err))
				}
				found[n.kubelet] = outcomes
			}
			r := resultsOf(found)
			errs = append(errs, r.write(cmd.OutOrStdout(), filepath.Join(out, "results.json"), found))
			if len(only) == 0 {
				errs = append(errs, complete(found, chosen))
			}
			return errors.Join(append(errs, r.judge())...)
		},
	}
	f := cmd.Flags()
	f.StringVar(&box, "box", "bin/box", "the box command, which makes the machines")
	f.StringVar(&out, "out", "out/node-test", "folder for the results")
	f.StringSliceVar(&kubelets, "kubelet", []string{"1.36", "1.35"}, "kubelets to test on, by minor version")
	f.StringSliceVar(&only, "only", nil, "cases to run (default: all)")
	f.DurationVar(&limit, "limit", 20*time.Minute, "time after which a machine is stopped")
	return cmd
}

func choose(kubelets []string) (chosen []node, err error) {
	for _, k := range kubelets {
		before := len(chosen)
		for _, n := range nodes {
			if n.kubelet == k {
				chosen = append(chosen, n)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("--kubelet is %q; it must be 1.36 or 1.35", k)
		}
	}
	return chosen, nil
}

// onMachine runs a machine and returns the outcomes of its cases. Its other output goes to out.
func onMachine(ctx context.Context, out io.Writer, box string, args []string) (outcomes []outcome, err error) {
	cmd := exec.CommandContext(ctx, box, args...)
	cmd.Stderr = out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 15 * time.Second
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if data, ok := strings.CutPrefix(line, outcomeLine); ok {
			var o outcome
			err = errors.Join(err, json.Unmarshal([]byte(data), &o))
			outcomes = append(outcomes, o)
			continue
		}
		fmt.Fprintln(out, line)
	}
	return outcomes, errors.Join(err, lines.Err(), cmd.Wait())
}

// complete returns an error if a machine did not run all cases.
func complete(found map[string][]outcome, on []node) error {
	var errs []error
	for _, n := range on {
		if made := len(found[n.kubelet]); made != len(nodeCases) {
			errs = append(errs, fmt.Errorf("kubelet %s: %d of %d cases were run", n.kubelet, made, len(nodeCases)))
		}
	}
	return errors.Join(errs...)
}
