package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"libra.dev/libra/loadtest/bench/machine"
)

// upWithin is how long a function may take until it listens.
const upWithin = 20 * time.Second

// process is a function that runs.
type process struct {
	cmd *exec.Cmd
	url string
}

// start runs a program and waits until it listens.
func start(ctx context.Context, program string, env ...string) (*process, error) {
	address, err := machine.FreeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(append(os.Environ(), env...), "PORT="+port)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, url: "http://" + address}
	ctx, cancel := context.WithTimeout(ctx, upWithin)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		if conn, err := net.Dial("tcp", address); err == nil {
			return p, conn.Close()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			p.stop()
			return nil, fmt.Errorf("%s does not listen: %w", program, ctx.Err())
		}
	}
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
}
