package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// softLimitEnv is where Go's runtime itself looks for a soft limit.
	softLimitEnv = "GOMEMLIMIT"
	// softLimitPercent leaves room for memory that the container is charged for but Go's runtime does not count:
	// the program itself, and the kernel's memory for its sockets.
	softLimitPercent = 85
	// unlimited is more than any node has. For no limit, cgroup v1 reports a number as large.
	unlimited = 1 << 50
)

// limitFiles have the memory limit of a container, on cgroup v2 and v1.
var limitFiles = []string{"memory.max", "memory/memory.limit_in_bytes"}

// limitMemory sets Go's soft memory limit below the container's limit, unless the environment sets one.
// Knative's Deployment sets GOGC=500, so garbage is collected only when the heap is six times the live memory.
// With what Libra keeps beyond stock, the container could be killed before that.
func limitMemory(root string, logger *zap.SugaredLogger) {
	if os.Getenv(softLimitEnv) != "" {
		logger.Infow("The activator has a soft memory limit", "bytes", debug.SetMemoryLimit(-1), "from", softLimitEnv)
		return
	}
	limit, file, err := containerLimit(root)
	if err != nil {
		logger.Warnw("The activator has no soft memory limit, because the container's memory limit cannot be read: set "+softLimitEnv+" to less than that limit", zap.Error(err))
		return
	}
	if limit == 0 {
		logger.Info("The activator has no soft memory limit, because it found no memory limit for its container")
		return
	}
	soft := limit * softLimitPercent / 100
	debug.SetMemoryLimit(soft)
	logger.Infow("The activator has a soft memory limit", "bytes", soft, "from", file, "containerBytes", limit)
}

// containerLimit returns the memory limit, in bytes, of the container whose cgroup is mounted at root, or 0 for
// none, and the file that says so.
func containerLimit(root string) (limit int64, file string, err error) {
	for _, name := range limitFiles {
		file = filepath.Join(root, name)
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, file, err
		}
		text := strings.TrimSpace(string(content))
		if text == "max" {
			return 0, file, nil
		}
		limit, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, file, fmt.Errorf("reading %s: %w", file, err)
		}
		if limit >= unlimited {
			return 0, file, nil
		}
		return limit, file, nil
	}
	return 0, "", nil
}
