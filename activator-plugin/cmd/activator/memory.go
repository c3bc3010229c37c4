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
	// softLimitEnv is where Go's runtime looks for a soft limit by itself.
	softLimitEnv = "GOMEMLIMIT"
	// softLimitPercent leaves room for memory that the container is charged with and that Go's runtime does
	// not count: the program itself, and the kernel's for its sockets.
	softLimitPercent = 85
	// unlimited is more than any node has. Version 1 of cgroups has a number as large for no limit.
	unlimited = 1 << 50
)

// limitFiles have the memory limit of a container, with version 2 and version 1 of cgroups.
var limitFiles = []string{"memory.max", "memory/memory.limit_in_bytes"}

// limitMemory sets Go's soft memory limit below the container's limit, unless the environment has one. Knative's
// Deployment sets GOGC=500, so that garbage is collected when the heap is six times what was live. With what
// Libra keeps beside stock, the container could be killed before that.
func limitMemory(root string, logger *zap.SugaredLogger) {
	if os.Getenv(softLimitEnv) != "" {
		logger.Infow("The activator has a soft memory limit", "bytes", debug.SetMemoryLimit(-1), "from", softLimitEnv)
		return
	}
	limit, file, err := containerLimit(root)
	if err != nil {
		logger.Warnw("The activator has no soft memory limit: set "+softLimitEnv+" to one below the container's memory limit, which cannot be read", zap.Error(err))
		return
	}
	if limit == 0 {
		logger.Info("The activator has no soft memory limit, because the container has no memory limit")
		return
	}
	soft := limit * softLimitPercent / 100
	debug.SetMemoryLimit(soft)
	logger.Infow("The activator has a soft memory limit", "bytes", soft, "from", file, "containerBytes", limit)
}

// containerLimit is the memory limit of the container whose cgroup is mounted at root, 0 for none, and the file
// that says so.
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
