package kubectl

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// optionsOf returns options for an API server that has one node, which it warns of, and what is written to standard error.
func optionsOf(t *testing.T) (*options, *bytes.Buffer) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/version":
			io.WriteString(w, `{"gitVersion":"v1.35.0"}`)
		case "/api":
			io.WriteString(w, `{"kind":"APIVersions","versions":["v1"]}`)
		case "/apis":
			io.WriteString(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
		case "/api/v1":
			io.WriteString(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"nodes","namespaced":false,"kind":"Node","verbs":["get"]}]}`)
		case "/api/v1/nodes/a":
			w.Header().Set("Warning", `299 - "it is old"`)
			io.WriteString(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"a"}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	var stderr bytes.Buffer
	o := newOptions(genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: &stderr})
	o.flags.APIServer = &server.URL
	return o, &stderr
}

// A client that limits its own requests refuses those that would have to wait too long, although the API server answers.
func TestOnlyTheAPIServerLimitsRequests(t *testing.T) {
	o, _ := optionsOf(t)
	kube, err := o.client()
	if err != nil {
		t.Fatal(err)
	}
	// The client's own limits would be well below this.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for i := range 1000 {
		if err := kube.Get(ctx, client.ObjectKey{Name: "a"}, &corev1.Node{}); err != nil {
			t.Fatalf("Request %d: %v", i, err)
		}
	}
}

// Two requests, as of commands that have several clients, are one warning.
func TestTheAPIServersWarningsArePrinted(t *testing.T) {
	o, stderr := optionsOf(t)
	for range 2 {
		kube, err := o.client()
		if err != nil {
			t.Fatal(err)
		}
		if err := kube.Get(t.Context(), client.ObjectKey{Name: "a"}, &corev1.Node{}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := stderr.String(), "Warning: it is old\n"; got != want {
		t.Errorf("Standard error is %q, want %q", got, want)
	}
}

// A script must not go on after a command that does not exist.
func TestMistypedCommandsFail(t *testing.T) {
	for _, args := range [][]string{{"chek"}, {"activator", "instal"}} {
		root := NewRoot(genericiooptions.NewTestIOStreamsDiscard())
		root.SetArgs(args)
		if err := root.Execute(); err == nil {
			t.Errorf("kubectl libra %s succeeds", strings.Join(args, " "))
		}
	}
	for _, args := range [][]string{{}, {"activator"}, {"activator", "--help"}} {
		root := NewRoot(genericiooptions.NewTestIOStreamsDiscard())
		root.SetArgs(args)
		if err := root.Execute(); err != nil {
			t.Errorf("kubectl libra %s: %v, want help", strings.Join(args, " "), err)
		}
	}
}
