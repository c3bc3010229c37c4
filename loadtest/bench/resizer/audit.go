package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"libra.dev/libra/pkg/settings"
)

// controllerUser is the controller's user in the API server.
const controllerUser = "system:serviceaccount:" + settings.Namespace + ":libra-resizer"

// audit reads the API server's audit log while it is being written.
type audit struct {
	path    string
	file    *os.File
	in      *bufio.Reader
	partial string // a line whose rest is to come

	came    []time.Time    // arrivals of requests, whatever became of them
	kinds   map[string]int // number of requests, by verb and resource
	resizes []resized
}

// resized is a resize that the API server accepted.
type resized struct {
	pod string // namespace/name
	at  time.Time
}

// read takes in everything logged since the last call.
func (a *audit) read() error {
	if a.file == nil {
		file, err := os.Open(a.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // nobody who is measured has asked for anything
		}
		if err != nil {
			return err
		}
		a.file, a.in, a.kinds = file, bufio.NewReaderSize(file, 1<<20), map[string]int{}
	}
	for {
		line, err := a.in.ReadString('\n')
		a.partial += line
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the audit log: %w", err)
		}
		if err := a.take(a.partial); err != nil {
			return err
		}
		a.partial = ""
	}
}

func (a *audit) take(line string) error {
	var event auditv1.Event
	if err := json.Unmarshal([]byte(line), &event); err != nil {
		return fmt.Errorf("decode a line of the audit log: %w: %.200s", err, line)
	}
	if event.User.Username != controllerUser {
		return nil
	}
	switch event.Stage {
	case auditv1.StageRequestReceived:
		a.came = append(a.came, event.RequestReceivedTimestamp.Time)
		a.kinds[kindOf(event)]++
	case auditv1.StageResponseComplete:
		ref := event.ObjectRef
		if ref != nil && ref.Resource == "pods" && ref.Subresource == "resize" && event.ResponseStatus != nil && event.ResponseStatus.Code == http.StatusOK {
			a.resizes = append(a.resizes, resized{ref.Namespace + "/" + ref.Name, event.StageTimestamp.Time})
		}
	}
	return nil
}

func kindOf(event auditv1.Event) string {
	what, _, _ := strings.Cut(event.RequestURI, "?")
	if ref := event.ObjectRef; ref != nil {
		if what = ref.Resource; ref.Subresource != "" {
			what += "/" + ref.Subresource
		}
	}
	return event.Verb + " " + what
}

// between counts the requests that arrived in a time.
func (a *audit) between(from, to time.Time) int {
	n := 0
	for _, at := range a.came {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}

// resizedAfter returns when a pod's first resize after a time was accepted.
func (a *audit) resizedAfter(pod string, after time.Time) (time.Time, bool) {
	for _, r := range a.resizes {
		if r.pod == pod && r.at.After(after) {
			return r.at, true
		}
	}
	return time.Time{}, false
}

func (a *audit) close() error {
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}
