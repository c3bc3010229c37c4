// Package check looks for what would keep Libra from working on a cluster, or let it do harm there, and says
// how to fix it. It only reads.
package check

import (
	"fmt"
	"strings"
)

// Severity is how bad a Finding is.
type Severity string

const (
	// Error means that Libra does not work, or may do harm.
	Error Severity = "error"
	// Warning means that Libra does less than it could, or that something is not known.
	Warning Severity = "warning"
	OK      Severity = "ok"
)

// severities are in the order in which findings are listed.
var severities = []Severity{Error, Warning, OK}

// Object is what a Finding is about. Without a name it is the whole kind.
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
	// Remedy is the command to type, or the stanza to add, as it is.
	Remedy string `json:"remedy,omitempty"`
}

// Check looks at one thing.
type Check struct {
	// ID stays the same from version to version.
	ID string
	// Looks says what the check looks at, for the docs.
	Looks string
	// Fine is the message when the check finds nothing. A check without it finds something unless there is nothing to
	// look at.
	Fine string
	// installed says that the check is about Libra's own parts, and has nothing to look at before there are any.
	installed bool
	run       look
}

// Registry returns all checks, in the order in which their findings are listed.
func Registry() []Check {
	var all []Check
	for _, theme := range [][]Check{versionChecks, activatorChecks, networkChecks, meshChecks, nodeChecks, partChecks, redisChecks, safetyChecks, metricChecks, functionChecks, namespaceChecks} {
		all = append(all, theme...)
	}
	return all
}

// failure, warning and fine make findings of the check that returns them.
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
