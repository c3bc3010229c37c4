package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"libra.dev/libra/loadtest/demo/report"
)

// picturesTimeout bounds the measurement of pictures, which takes three minutes.
const picturesTimeout = 15 * time.Minute

// pictures has another command measure the cost and worth of activators' pictures on a real Redis, into the metrics.
func (o options) pictures(ctx context.Context, metrics map[string]float64, out io.Writer) error {
	dir, err := os.MkdirTemp("", "bench-place")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, picturesTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.pool, "pictures", "--out", dir, "--seed", strconv.FormatUint(o.seed, 10), "--quick="+strconv.FormatBool(o.quick))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("--pool: run %s pictures: %w", o.pool, err)
	}
	results, err := readResults(dir)
	if err != nil {
		return err
	}
	maps.Copy(metrics, results.Metrics)
	return nil
}

const throughput = "scheduler_throughput_ratio"

// scheduler takes over bench-scheduler's result, if there is one from the same commit.
func (o options) scheduler(metrics map[string]float64) error {
	results, err := readResults(o.schedulerOut)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--scheduler: %w", err)
	}
	if results.Commit != o.commit {
		return nil
	}
	for _, name := range []string{throughput, throughput + "_low", throughput + "_high"} {
		if value, ok := results.Metrics[name]; ok {
			metrics[name] = value
		}
	}
	return nil
}

func readResults(dir string) (results report.Results, err error) {
	path := filepath.Join(dir, report.ResultsFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return results, err
	}
	if err := json.Unmarshal(data, &results); err != nil {
		return results, fmt.Errorf("%s has no results: %w", path, err)
	}
	return results, nil
}
