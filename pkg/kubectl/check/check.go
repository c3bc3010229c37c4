// Package check looks for what would keep Libra from working on a cluster, or let it do harm there, and says how to
// mend it. It only reads.
package check

import (
	"fmt"
	"strings"
)

// Severity is how bad a Finding is.
type Severity string

const (
	// Error is what Libra does not work with, or may do harm with.
	Error Severity = "error"
	// Warning is what costs some of what Libra could do, or what is not known.
	Warning Severity = "warning"
	OK      Severity = "ok"
)

// severities are in the order in which findings are told.
var severities = []Severity{Error, Warning, OK}

// Object is what a Finding is about. One without a name is the whole of its kind.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

func (o Object) String() string {
	name := o.Name
	if o.Namespace != "" && name != "" {
		name = o.Namespace + "/" + name
	} else if o.Namespace != "" {
		name = "in " + o.Namespace
	}
	return strings.TrimSpace(o.Kind + " " + name)
}

// Finding is what a check has found.
type Finding struct {
	Severity Severity `json:"severity"`
	// Check is the ID of the check that found it.
	Check   string `json:"check"`
	Object  Object `json:"object"`
	Message string `json:"message"`
	// Remedy is what to type, or the stanza to add, as it is.
	Remedy string `json:"remedy,omitempty"`
}

// Check looks at one thing.
type Check struct {
	// ID stays the same from version to version.
	ID string
	// Looks says what it looks at, for the docs.
	Looks string
	// Fine says what is so when it finds nothing.
	Fine string
	// installed says that it is about Libra's own parts: before there are any it has nothing to look at.
	installed bool
	run       look
}

// Registry are all checks, in the order in which their findings are told.
func Registry() []Check {
	var all []Check
	for _, theme := range [][]Check{versionChecks, activatorChecks, networkChecks, meshChecks, nodeChecks, partChecks, redisChecks, safetyChecks, metricChecks, functionChecks, namespaceChecks} {
		all = append(all, theme...)
	}
	return all
}

// failure and its like make findings of the check that returns them.
func failure(about Object, remedy, format string, args ...any) Finding {
	return Finding{Severity: Error, Object: about, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

func warning(about Object, remedy, format string, args ...any) Finding {
	return Finding{Severity: Warning, Object: about, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

func fine(about Object, format string, args ...any) Finding {
	return Finding{Severity: OK, Object: about, Message: fmt.Sprintf(format, args...)}
}

var wholeCluster = Object{Kind: "cluster"}
