package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"libra.dev/libra/loadtest/functions/inputs"
)

func TestReplaySendsWhenItIsDueAndChecksAnswers(t *testing.T) {
	var mu sync.Mutex
	next := make(chan struct{})
	hosts, numbers := map[string]string{}, map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		hosts[string(body)], numbers[string(body)] = r.Host, r.Header.Get(inputHeader)
		mu.Unlock()
		switch string(body) {
		case "slow":
			select {
			case <-next:
				fmt.Fprint(w, `{"did":{"bytes":4}}`)
			case <-time.After(30 * time.Second):
				http.Error(w, "it holds up the next", http.StatusGatewayTimeout)
			}
		case "good":
			close(next)
			fmt.Fprint(w, `{"did":{"bytes":4}}`)
		case "wrong":
			fmt.Fprint(w, `{"did":{"bytes":1}}`)
		case "page":
			fmt.Fprint(w, `<html>`)
		case "refused":
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "no room")
		default:
			fmt.Fprintf(w, `{"did":{"bytes":%d}}`, len(body))
		}
	}))
	defer server.Close()
	var messages []message
	bodies := []string{"slow", "good", "wrong", "page", "refused"}
	for i, body := range bodies {
		messages = append(messages, message{due: time.Duration(i) * 20 * time.Millisecond, host: body + ".test",
			input: inputs.Input{Body: []byte(body), Expect: map[string]int64{"bytes": int64(len(body))}}})
	}
	messages[1].number = "17"
	fates, err := newSender(server.URL, nil).replay(t.Context(), messages)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		status int
		err    string
	}{{200, ""}, {200, ""}, {200, "the function says that it did map[bytes:1]"}, {200, "not that of a function"}, {503, "no room"}} {
		got := fates[i]
		if got.status != want.status || (got.err == "") != (want.err == "") || !strings.Contains(got.err, want.err) {
			t.Errorf("%s: got %d, %q; want %d, %q", bodies[i], got.status, got.err, want.status, want.err)
		}
		if got.late < 0 || got.took < got.late {
			t.Errorf("%s: sent %v late, took %v from when it was due", bodies[i], got.late, got.took)
		}
		if hosts[bodies[i]] != bodies[i]+".test" {
			t.Errorf("%s went to %q", bodies[i], hosts[bodies[i]])
		}
		if numbers[bodies[i]] != messages[i].number {
			t.Errorf("%s says that its input is %q, want %q", bodies[i], numbers[bodies[i]], messages[i].number)
		}
	}
}

func TestReplayEndsWithItsContext(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // so that the server notices that the client goes
		<-r.Context().Done()
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := newSender(server.URL, nil).replay(ctx, []message{{}, {due: time.Hour}}); err == nil {
		t.Error("no error, and not all were sent")
	}
}
