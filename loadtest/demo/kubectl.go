package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// kubectl runs the command kubectl against one cluster.
type kubectl struct {
	path string
	// flags choose the cluster.
	flags []string
	env   []string
}

// call is one command. It fails after its timeout.
type call struct {
	timeout time.Duration
	stdin   io.Reader
	args    []string
}

func (k kubectl) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, k.path)
	// The box's kubectl is one of many programs in a binary, chosen by its name.
	cmd.Args = append(append([]string{"kubectl"}, k.flags...), args...)
	cmd.Env = k.env
	// A second Ctrl-C is not meant for the command that cleans up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func (k kubectl) do(ctx context.Context, c call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := k.command(ctx, c.args...)
	cmd.Stdin = c.stdin
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w after %v", ctx.Err(), c.timeout)
		}
		return nil, fmt.Errorf("kubectl %s: %w: %s", strings.Join(c.args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// run runs a command that answers at once.
func (k kubectl) run(ctx context.Context, args ...string) ([]byte, error) {
	return k.do(ctx, call{timeout: 30 * time.Second, args: args})
}

// get reads objects into an API type.
func (k kubectl) get(ctx context.Context, into any, args ...string) error {
	out, err := k.run(ctx, append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("kubectl get %s: decode the answer: %w", strings.Join(args, " "), err)
	}
	return nil
}

// exists reports whether an object exists.
func (k kubectl) exists(ctx context.Context, args ...string) (bool, error) {
	out, err := k.run(ctx, append([]string{"get", "--ignore-not-found", "-o", "name"}, args...)...)
	return len(out) > 0, err
}

// wait runs a command in which kubectl blocks until something is as the
// arguments say, for at most timeout.
func (k kubectl) wait(ctx context.Context, timeout time.Duration, args ...string) error {
	// kubectl's own message at its timeout says more than ours.
	_, err := k.do(ctx, call{timeout: timeout + 5*time.Second, args: append(args, "--timeout="+timeout.String())})
	return err
}

// eventually calls attempt until it succeeds, for at most timeout, and returns
// the last error. It backs off between attempts.
func eventually(ctx context.Context, timeout time.Duration, attempt func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, 4*time.Second) {
		err := attempt(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}
