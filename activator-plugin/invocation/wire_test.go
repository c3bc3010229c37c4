package invocation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
	"knative.dev/serving/pkg/apis/config"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/pooltest"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

// A wire is one way in which a client and a function talk, or stop talking, over real connections.
// Its talk returns when the client is done, with an error for anything that went wrong.
type wire struct {
	name  string
	proto int // of HTTP
	talk  func(ctx context.Context, c *http.Client, url string) error
}

var errWanted = errors.New("this had to fail")

var wires = []wire{
	{"a response", 1, getOK},
	{"a response over HTTP/2", 2, getOK},
	{"a long response", 1, readAll("/stream")},
	{"a long response over HTTP/2, with trailers", 2, readAll("/stream")},
	{"the client leaves before the response", 1, leave("/hint", 0)},
	{"the client resets its stream before the response", 2, leave("/hint", 0)},
	{"the client leaves within the response", 1, leave("/drip", 4)},
	{"the client resets its stream within the response", 2, leave("/drip", 4)},
	{"the client leaves within its own body", 1, leaveBody},
	{"the client resets its stream within its own body", 2, leaveBody},
	{"the function leaves before the response", 1, cut("/abort", http.StatusBadGateway)},
	{"the function resets the stream before the response", 2, cut("/abort", http.StatusBadGateway)},
	{"the function leaves within the response", 1, cut("/half", 0)},
	{"the function resets the stream within the response", 2, cut("/half", 0)},
	{"no response in time", 1, cut("/hang", http.StatusGatewayTimeout)},
	{"no response in time over HTTP/2", 2, cut("/hang", http.StatusGatewayTimeout)},
	{"a websocket that the client closes", 1, socket("bye")},
	{"a websocket that the function closes", 1, socket("close")},
	{"a websocket whose client is gone", 1, socket("")},
	{"a websocket whose function is gone", 1, socket("crash")},
	{"a websocket that is refused", 1, refusedSocket},
}

// wired is a function for every wire.
func wired() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	mux.HandleFunc("/stream", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Sum")
		for range 20 {
			io.WriteString(w, strings.Repeat("x", 1000))
			http.NewResponseController(w).Flush()
		}
		w.Header().Set("Sum", "20000")
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/hint", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		<-r.Context().Done()
	})
	mux.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			io.WriteString(w, "drip")
			http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(time.Millisecond):
			}
		}
	})
	mux.HandleFunc("/duplex", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		for buf := make([]byte, 1000); ; {
			n, err := r.Body.Read(buf)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			w.Write(buf[:n])
			http.NewResponseController(w).Flush()
		}
	})
	mux.HandleFunc("/abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/half", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		conn, err := new(websocket.Upgrader).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		for {
			kind, message, err := conn.ReadMessage()
			switch {
			case err != nil || string(message) == "crash":
				return
			case string(message) == "close":
				conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
				conn.ReadMessage()
				return
			}
			conn.WriteMessage(kind, message)
		}
	})
	g := grpc.NewServer()
	h := health.NewServer()
	h.SetServingStatus("function", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(g, h)
	mux.Handle("/grpc.health.v1.Health/", g)
	return mux
}

func getOK(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/", strings.NewReader("hello"))
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "hello" {
		return fmt.Errorf("read %q, %w, want hello", body, err)
	}
	return nil
}

func get(ctx context.Context, c *http.Client, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return c.Do(req)
}

func readAll(path string) func(context.Context, *http.Client, string) error {
	return func(ctx context.Context, c *http.Client, url string) error {
		resp, err := get(ctx, c, url+path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || len(body) != 20_000 || resp.Trailer.Get("Sum") != "20000" {
			return fmt.Errorf("read %d bytes, %w, and the trailers %v", len(body), err, resp.Trailer)
		}
		return nil
	}
}

// leave gives up after n bytes of the response; for 0, at the early hints before it.
func leave(path string, n int64) func(context.Context, *http.Client, string) error {
	return func(ctx context.Context, c *http.Client, url string) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if n == 0 {
			ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
				Got1xxResponse: func(int, textproto.MIMEHeader) error {
					cancel()
					return nil
				},
			})
		}
		resp, err := get(ctx, c, url+path)
		if n == 0 {
			if err == nil {
				resp.Body.Close()
				return errWanted
			}
			return nil
		}
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.CopyN(io.Discard, resp.Body, n)
		return err
	}
}

// leaveBody sends its body until the function says that it reads it, and then stops.
func leaveBody(ctx context.Context, c *http.Client, url string) error {
	r, w := io.Pipe()
	go io.WriteString(w, "hello")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/duplex", r)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, len("hello"))); err != nil {
		return err
	}
	w.CloseWithError(errors.New("the client has no more"))
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		return errWanted
	}
	return nil
}

// cut wants the status, or a response that breaks off.
func cut(path string, want int) func(context.Context, *http.Client, string) error {
	return func(ctx context.Context, c *http.Client, url string) error {
		resp, err := get(ctx, c, url+path)
		if err == nil {
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			if want != 0 && resp.StatusCode != want {
				return fmt.Errorf("status %d, want %d", resp.StatusCode, want)
			}
		}
		if want == 0 && err == nil {
			return errWanted
		}
		return nil
	}
}

// socket says a word over a websocket, and then leaves, unless only the function is to do that.
func socket(last string) func(context.Context, *http.Client, string) error {
	return func(ctx context.Context, _ *http.Client, url string) error {
		conn, resp, err := websocket.DefaultDialer.DialContext(ctx, "ws"+strings.TrimPrefix(url, "http")+"/socket", nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		if resp.StatusCode != http.StatusSwitchingProtocols {
			return fmt.Errorf("status %d, want 101", resp.StatusCode)
		}
		if err := conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
			return err
		}
		if _, message, err := conn.ReadMessage(); err != nil || string(message) != "hello" {
			return fmt.Errorf("read %q, %w, want hello", message, err)
		}
		switch last {
		case "":
			return nil
		case "bye":
			err = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
		default:
			err = conn.WriteMessage(websocket.TextMessage, []byte(last))
		}
		if err != nil {
			return err
		}
		_, _, err = conn.ReadMessage()
		if normal := websocket.IsCloseError(err, websocket.CloseNormalClosure); normal != (last != "crash") {
			return fmt.Errorf("the websocket ended in %w", err)
		}
		return nil
	}
}

// refusedSocket is refused with an empty response: of a longer one, the dialer may leave some unread.
func refusedSocket(ctx context.Context, _ *http.Client, url string) error {
	conn, resp, err := websocket.DefaultDialer.DialContext(ctx, "ws"+strings.TrimPrefix(url, "http")+"/", nil)
	if err == nil {
		conn.Close()
		return errWanted
	}
	if resp == nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("response %v, %w, want one without an upgrade", resp, err)
	}
	return nil
}

// newClient returns a client and a function that closes its connections: one with a stream that is
// just being reset would not count as idle.
func newClient(proto int) (c *http.Client, stop func()) {
	var (
		mu    sync.Mutex
		conns []net.Conn
	)
	transport := &http.Transport{
		Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				conns = append(conns, conn)
			}
			return conn, err
		},
	}
	transport.Protocols.SetHTTP1(proto == 1)
	transport.Protocols.SetUnencryptedHTTP2(proto == 2)
	return &http.Client{Transport: transport}, func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			conn.Close()
		}
	}
}

func newWiredChain(t *testing.T, l *ledger) *chain {
	rev := newRevision()
	rev.Annotations[config.AllowHTTPFullDuplexFeatureKey] = "Enabled"
	return newChain(t, chainOptions{
		pool:     l,
		rev:      rev,
		function: wired(),
		timeout: func(r *http.Request) time.Duration {
			if r.URL.Path == "/hang" {
				return 100 * time.Millisecond
			}
			return testTimeout
		},
		predictions: predictions{revID: predict.Prediction{Demand: res(300, 600), Duration: time.Minute}},
	})
}

// However client and function talk and stop talking, there is one End for the Begin.
func TestEveryWireEndsOnce(t *testing.T) {
	for _, w := range wires {
		t.Run(w.name, func(t *testing.T) {
			l := newLedger(pooltest.NewMemory(clock.RealClock{}))
			c := newWiredChain(t, l)
			client, stop := newClient(w.proto)
			ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
			defer cancel()
			if err := w.talk(ctx, client, c.URL); err != nil {
				t.Error(err)
			}
			c.awaitEnds(t, l, 1)
			stop()
			l.check(t, 1)
		})
	}
}

// The same, all at once and more than once, against a real Redis.
func TestAllWiresEndOnceInRedis(t *testing.T) {
	const rounds = 5
	p := pool.NewRedis(redisconn.MustParse(redistest.Start(t)))
	defer p.Close()
	// Redis has the functions from here on: loading them again would make a new epoch,
	// which begins with no invocation.
	openNode(t, p)
	l := newLedger(p)
	c := newWiredChain(t, l)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	done := make(chan error)
	for _, w := range wires {
		go func() {
			client, stop := newClient(w.proto)
			defer stop()
			for range rounds {
				if err := w.talk(ctx, client, c.URL); err != nil {
					done <- fmt.Errorf("%s: %w", w.name, err)
					return
				}
			}
			done <- nil
		}()
	}
	for range wires {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	c.awaitEnds(t, l, rounds*len(wires))
	l.check(t, rounds*len(wires))
	if state, err := p.Read(ctx, "node-a"); err != nil || !slices.Equal(state.Unseen, []string{"ns/a"}) {
		t.Errorf("after clients went away, pods that may compute are %v, %v, want ns/a", state.Unseen, err)
	}
}

func TestGRPC(t *testing.T) {
	l := newLedger(pooltest.NewMemory(clock.RealClock{}))
	c := newWiredChain(t, l)
	conn, err := grpc.NewClient("passthrough:///"+c.Listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()

	if answer, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "function"}); err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("Check() = %v, %v, want SERVING", answer, err)
	}
	// An error is in the trailers, after no body.
	if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "another"}); status.Code(err) != codes.NotFound {
		t.Errorf("Check() of what is not there = %v, want NotFound", err)
	}
	c.awaitEnds(t, l, 2)

	watching, leave := context.WithCancel(ctx)
	defer leave()
	stream, err := client.Watch(watching, &healthpb.HealthCheckRequest{Service: "function"})
	if err != nil {
		t.Fatal("Watch() =", err)
	}
	if answer, err := stream.Recv(); err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("Recv() = %v, %v, want SERVING", answer, err)
	}
	leave()
	c.awaitEnds(t, l, 3)
	drain(t, c.manager.lifecycle)
	l.check(t, 3)
}

// awaitEnds waits until n invocations have begun and all have ended.
func (c *chain) awaitEnds(t *testing.T, l *ledger, n int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d Ends", n), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.ended) == n
	})
	waitFor(t, "the answers to the Ends", func() bool {
		c.manager.lifecycle.mu.Lock()
		defer c.manager.lifecycle.mu.Unlock()
		return c.manager.lifecycle.inFlight == 0
	})
}
