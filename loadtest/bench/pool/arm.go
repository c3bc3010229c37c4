package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"
)

// newArm is the subcommand that compare starts of each command.
func newArm() *cobra.Command {
	var (
		o     options
		nodes int
	)
	cmd := &cobra.Command{
		Use:    "arm",
		Short:  "Measure a turn for each line of the input",
		Hidden: true,
		Long: `arm opens the pools of some nodes, and begins and ends invocations in them without pauses, first to warm up and then once for each
line of its input. It prints a line of JSON for each turn.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.takeTurns(cmd.Context(), nodes, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	o.flags(f, "")
	o.loadFlags(f)
	f.IntVar(&nodes, "nodes", 1000, "number of nodes, each with a pool")
	f.DurationVar(&o.length, "length", 250*time.Millisecond, "length of a turn")
	return cmd
}

func (o options) takeTurns(ctx context.Context, nodes int, in io.Reader, out io.Writer) (err error) {
	as, err := readShipped(o.redis)
	if err != nil {
		return err
	}
	pinned, err := leaveCore()
	if err != nil {
		return err
	}
	s, err := startServer(ctx, as, pinned)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	l, err := newLoad(ctx, o, s.addr, nodes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	said := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); ; {
		l.seed++ // each turn has other invocations
		turn, err := l.loop(ctx, s, 0)
		if err != nil {
			return err
		}
		metrics := map[string]float64{}
		turn.into(metrics, "", "")
		if err := said.Encode(metrics); err != nil {
			return err
		}
		if !lines.Scan() {
			return lines.Err()
		}
	}
}
