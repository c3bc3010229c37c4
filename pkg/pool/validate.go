package pool

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"libra.dev/libra/pkg/api"
)

// MostVolume is more CPU (in milli) or memory (in bytes) than any container has, and small
// enough that sums of it stay exact in Lua's numbers.
const MostVolume = 1 << 40

// maxNumber is more invocations than any pod takes, and exact in Lua's numbers.
const maxNumber = 1 << 30

// maxExact is the largest number up to which Lua's numbers are exact.
const maxExact = 1 << 53

// maxName is longer than any name is, in bytes.
const maxName = 1024

// ValidateName refuses a name that is empty, too long, or has more than one line. The error
// names the field.
func ValidateName(field, value string) error {
	if value == "" || len(value) > maxName || strings.Contains(value, "\n") {
		return invalidf("%s is %.100q: it must have 1 to %d bytes and no newline", field, value, maxName)
	}
	return nil
}

// checkOptional is ValidateName for a name that may be empty.
func checkOptional(field, value string) error {
	if value == "" {
		return nil
	}
	return ValidateName(field, value)
}

// ValidateNode refuses a node's name that is empty, or that would end a key's hash tag early.
func ValidateNode(node string) error {
	if node == "" || strings.ContainsAny(node, "{}") {
		return invalidf("node is %q: it must not be empty or contain braces", node)
	}
	return nil
}

func checkVolume(field string, r api.Resources) error {
	if min(r.CPUMilli, r.MemoryBytes) < 0 || max(r.CPUMilli, r.MemoryBytes) > MostVolume {
		return fmt.Errorf("%s is %d milli CPU and %d bytes: each must be from 0 to %d", field, r.CPUMilli, r.MemoryBytes, int64(MostVolume))
	}
	return nil
}

// checkUse is checkVolume for a node, which may have more memory than any container.
func checkUse(field string, r api.Resources) error {
	return errors.Join(checkNumber(field, r.CPUMilli, MostVolume), checkNumber(field, r.MemoryBytes, maxExact))
}

func checkDuration(field string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%s is %s: it must not be negative", field, d)
	}
	return nil
}

func checkNumber(field string, n, most int64) error {
	if n < 0 || n > most {
		return invalidf("%s is %d: it must be from 0 to %d", field, n, most)
	}
	return nil
}

// checkTrace only bounds the size: whether it is a traceparent is up to its readers.
func checkTrace(field, trace string) error {
	const length = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(trace) != 0 && len(trace) != length {
		return fmt.Errorf("%s is %.100q: it must be empty or a W3C traceparent, of %d bytes", field, trace, length)
	}
	return nil
}

// Validate refuses an invocation that no Pool accepts, and says why.
func (inv Invocation) Validate() error {
	err := errors.Join(
		ValidateName("ID", inv.ID),
		ValidateName("Function", inv.Function),
		checkOptional("Configuration", inv.Configuration),
		ValidateName("Pod", inv.Pod),
		ValidateName("Domain", inv.Domain),
		ValidateName("Owner", inv.Owner),
		checkVolume("Allocation", inv.Allocation),
		checkVolume("Surplus", inv.Surplus),
		checkVolume("Want", inv.Want),
		checkVolume("Need", inv.Need),
		checkNumber("Concurrency", int64(inv.Concurrency), maxNumber),
		checkNumber("Others", int64(inv.Others), maxNumber),
		checkVolume("IdleCPUMilli", api.Resources{CPUMilli: inv.IdleCPUMilli}),
		checkVolume("WantMostMilli", api.Resources{CPUMilli: inv.WantMostMilli}),
		checkNumber("Number", inv.Number, maxExact),
		checkDuration("Duration", inv.Duration),
		checkDuration("WithoutLoan", inv.WithoutLoan),
		checkDuration("MinRemaining", inv.MinRemaining),
		checkDuration("CPUTime", inv.CPUTime),
		checkTrace("Trace", inv.Trace),
	)
	if err != nil {
		return invalidf("invocation %q: %w", inv.ID, err)
	}
	return nil
}

// Validate refuses an ending that no Pool accepts, and says why.
func (e Ending) Validate() error {
	err := errors.Join(ValidateName("ID", e.ID), checkDuration("Duration", e.Duration), checkDuration("Ago", e.Ago), checkOptional("ComputesIn", e.ComputesIn))
	if err != nil {
		return invalidf("ending %q: %w", e.ID, err)
	}
	return nil
}

// ValidateAsk refuses arguments of an Ask that no Pool accepts.
func ValidateAsk(pod string, milli int64) error {
	return errors.Join(ValidateName("pod", pod), checkNumber("milli", milli, MostVolume))
}

// Validate refuses a heartbeat that no Pool accepts, and says why.
func (hb Heartbeat) Validate() error {
	errs := []error{ValidateName("Agent", hb.Agent), checkVolume("Lendable", hb.Lendable)}
	errs = append(errs, checkUse("Capacity", hb.Capacity), checkUse("Idle", hb.Idle))
	for pod, bytes := range hb.Needs {
		errs = append(errs, ValidateName("Needs", pod), checkVolume("Needs", api.Resources{MemoryBytes: bytes}))
	}
	for _, pod := range hb.Rested {
		errs = append(errs, ValidateName("Rested", pod))
	}
	if len(hb.Rested) > 0 {
		errs = append(errs, checkNumber("RestedAt", hb.RestedAt.UnixMilli(), maxExact))
	}
	for pod, floor := range hb.Pods {
		errs = append(errs, ValidateName("Pods", pod), checkVolume("Pods", api.Resources{MemoryBytes: floor}))
	}
	if err := errors.Join(errs...); err != nil {
		return invalidf("heartbeat of agent %q: %w", hb.Agent, err)
	}
	return nil
}

// The pool counts in milliseconds. Rounding never makes a donor last longer than predicted, and
// never asks it to last for less than was wanted. A known CPU time never becomes 0, which means
// not known.

func wholeMillis(d time.Duration) int64 { return d.Milliseconds() }

func ceilMillis(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}
