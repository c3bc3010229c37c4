package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	viewDir = "/run/libra-box/view"
	// viewEvery is the maximum age of a worker's own /proc. An agent reads it once a second.
	viewEvery = 200 * time.Millisecond

	cpusDir      = "/sys/devices/system/cpu"
	numaNodesDir = "/sys/devices/system/node"
)

// view is what a worker's kubelet and agent see of the machine: the worker's CPUs, and its part
// of the memory. Containers see the machine's own in their /proc.
type view struct {
	cpus        []int
	memoryBytes int64
	groups      cgroupSystem

	// The machine's files, opened before they were covered, and the files that cover them.
	stat, meminfo           *os.File
	shownStat, shownMeminfo *os.File
}

// show covers the machine's files and folders with the worker's in this mount namespace.
func (v *view) show() error {
	if err := os.MkdirAll(viewDir, 0o755); err != nil {
		return err
	}
	for path, files := range map[string][2]**os.File{
		"/proc/stat": {&v.stat, &v.shownStat}, "/proc/meminfo": {&v.meminfo, &v.shownMeminfo},
	} {
		var err error
		if *files[0], err = os.Open(path); err != nil {
			return err
		}
		if *files[1], err = os.Create(filepath.Join(viewDir, filepath.Base(path))); err != nil {
			return err
		}
	}
	if err := v.update(); err != nil {
		return err
	}
	for _, f := range []*os.File{v.shownStat, v.shownMeminfo} {
		target := filepath.Join("/proc", filepath.Base(f.Name()))
		if err := unix.Mount(f.Name(), target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover %s: %w", target, err)
		}
	}
	return v.showCPUs()
}

// showCPUs leaves only the worker's CPUs in /sys. The kubelet takes the CPUs from there if it
// finds no NUMA nodes.
func (v *view) showCPUs() error {
	open := map[string]int{}
	for _, cpu := range v.cpus {
		path := filepath.Join(cpusDir, "cpu"+strconv.Itoa(cpu))
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer unix.Close(fd)
		open[path] = fd
	}
	if _, err := os.Stat(numaNodesDir); err == nil {
		if err := mountTmpfs(numaNodesDir); err != nil {
			return err
		}
	}
	if err := mountTmpfs(cpusDir); err != nil {
		return err
	}
	for path, fd := range open {
		if err := bind(fmt.Sprintf("/proc/self/fd/%d", fd), path); err != nil {
			return err
		}
	}
	for _, name := range []string{"online", "possible", "present"} {
		if err := os.WriteFile(filepath.Join(cpusDir, name), []byte(cpuList(v.cpus)+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// keep updates the shown files for as long as this process runs.
func (v *view) keep() {
	for range time.Tick(viewEvery) {
		if err := v.update(); err != nil {
			log.Printf("update what the node sees of the machine: %v", err)
		}
	}
}

func (v *view) update() error {
	stat, err := readAgain(v.stat)
	if err != nil {
		return err
	}
	meminfo, err := readAgain(v.meminfo)
	if err != nil {
		return err
	}
	used, inactive, err := v.groups.memoryUsed()
	if err != nil {
		return err
	}
	return errors.Join(write(v.shownStat, statOf(stat, v.cpus)), write(v.shownMeminfo, meminfoOf(meminfo, v.memoryBytes, used, inactive)))
}

// readAgain reads a file of /proc from its beginning.
func readAgain(f *os.File) ([]byte, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// write replaces a file's content in place: a file that covers another must stay the same file.
func write(f *os.File, data []byte) error {
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(data)))
}

// statOf returns a /proc/stat with the times of only these CPUs. Its length hardly changes, so
// that a reader finds whole lines even during a write.
func statOf(stat []byte, cpus []int) []byte {
	var all []uint64
	var each, rest bytes.Buffer
	for line := range bytes.Lines(stat) {
		fields := strings.Fields(string(line))
		if len(fields) == 0 {
			continue
		}
		number, isCPU := strings.CutPrefix(fields[0], "cpu")
		cpu, err := strconv.Atoi(number) // the total's line has no number
		switch {
		case !isCPU && fields[0] != "intr" && fields[0] != "softirq":
			rest.Write(line)
		case isCPU && err == nil && slices.Contains(cpus, cpu):
			times := numbers(fields[1:])
			for len(all) < len(times) {
				all = append(all, 0)
			}
			for i, t := range times {
				all[i] += t
			}
			writeTimes(&each, fields[0], times)
		}
	}
	var out bytes.Buffer
	writeTimes(&out, "cpu ", all)
	return append(append(out.Bytes(), each.Bytes()...), rest.Bytes()...)
}

func numbers(fields []string) []uint64 {
	all := make([]uint64, len(fields))
	for i, f := range fields {
		all[i], _ = strconv.ParseUint(f, 10, 64) // the kernel wrote it
	}
	return all
}

func writeTimes(to *bytes.Buffer, name string, times []uint64) {
	to.WriteString(name)
	for _, t := range times {
		fmt.Fprintf(to, " %10d", t)
	}
	to.WriteByte('\n')
}

// meminfoOf returns a /proc/meminfo of a machine with total bytes of memory. Its cgroup uses used
// bytes, of which the kernel could reclaim inactive. No value exceeds the real machine's.
func meminfoOf(meminfo []byte, total, used, inactive int64) []byte {
	shown := map[string]int64{
		"MemTotal:":     total,
		"MemFree:":      max(0, total-used),
		"MemAvailable:": max(0, total-used+inactive),
	}
	var out bytes.Buffer
	for line := range bytes.Lines(meminfo) {
		fields := strings.Fields(string(line))
		value, ok := int64(0), false
		if len(fields) > 1 {
			value, ok = shown[fields[0]]
		}
		if !ok {
			out.Write(line)
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			kib = 0
		}
		fmt.Fprintf(&out, "%-15s %8d kB\n", fields[0], min(kib, value>>10))
	}
	return out.Bytes()
}

// memoryUsed returns the memory in bytes that the root of the cgroup namespace uses, and how much
// of it is of files that nobody has used of late.
func (s cgroupSystem) memoryUsed() (used, inactive int64, err error) {
	for _, h := range s.used() {
		usage, key := "memory.usage_in_bytes", "total_inactive_file"
		if h.v2 {
			usage, key = "memory.current", "inactive_file"
		}
		text, err := os.ReadFile(filepath.Join(h.mount, usage))
		if errors.Is(err, fs.ErrNotExist) {
			continue // another controller's
		}
		if err != nil {
			return 0, 0, err
		}
		if used, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err != nil {
			return 0, 0, err
		}
		stat, err := os.ReadFile(filepath.Join(h.mount, "memory.stat"))
		if err != nil {
			return 0, 0, err
		}
		for line := range strings.Lines(string(stat)) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == key {
				inactive, err = strconv.ParseInt(value, 10, 64)
				return used, inactive, err
			}
		}
		return used, 0, nil
	}
	return 0, 0, errors.New("no cgroup hierarchy counts memory")
}
