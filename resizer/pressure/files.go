package pressure

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"libra.dev/libra/resizer/cgroup"
)

// readSize is the size of the buffer. Only lists of threads can be longer.
const readSize = 4096

// counter is an open file with a time that only grows.
type counter struct {
	cgroup.File
	parse func(text []byte) (time.Duration, error)
	last  time.Duration
	known bool
}

func openCounter(path string, parse func([]byte) (time.Duration, error)) (*counter, error) {
	file, err := cgroup.OpenFile(path, false)
	if err != nil {
		return nil, err
	}
	return &counter{File: file, parse: parse}, nil
}

// since returns by how much the time has grown since the last call; 0 the first time.
func (c *counter) since(buffer []byte) (time.Duration, error) {
	text, err := c.Read(buffer)
	if err != nil {
		return 0, err
	}
	value, err := c.parse(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.Path, err)
	}
	grown := max(0, value-c.last)
	if !c.known {
		grown = 0
	}
	c.last, c.known = value, true
	return grown, nil
}

func (c *counter) close() { c.Close() } //nolint:errcheck // read only

// number returns the number that text begins with.
func number(text []byte) (int64, error) {
	end := 0
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(string(text[:end]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%.32q does not begin with a number", text)
	}
	return n, nil
}

// keyed returns the number that follows the key in text; 0 when the key is not there.
func keyed(text []byte, key string) (int64, error) {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok && len(rest) > 0 && rest[0] == ' ' {
			return number(rest[1:])
		}
	}
	return 0, nil
}

func parseNanos(text []byte) (time.Duration, error) {
	n, err := number(text)
	return time.Duration(n), err
}

func parseThrottledV1(text []byte) (time.Duration, error) {
	n, err := keyed(text, "throttled_time")
	return time.Duration(n), err
}

func parseThrottledV2(text []byte) (time.Duration, error) {
	n, err := keyed(text, "throttled_usec")
	return time.Duration(n) * time.Microsecond, err
}

func parseUsageV2(text []byte) (time.Duration, error) {
	n, err := keyed(text, "usage_usec")
	return time.Duration(n) * time.Microsecond, err
}
