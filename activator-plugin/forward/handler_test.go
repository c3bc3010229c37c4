package forward

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/net/http2"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	knativeactivator "knative.dev/serving/pkg/activator"
	activatorhandler "knative.dev/serving/pkg/activator/handler"

	"libra.dev/libra/pkg/api"
)

var revID = types.NamespacedName{Namespace: "shop", Name: "cart-00001"}

// cluster is a set of activators that can reach each other by name: their names serve as addresses.
type cluster struct {
	testing.TB
	mu        sync.Mutex
	addresses map[string]string
	dialled   map[string]int
	tls       *tls.Config // of the servers
	trusts    TLSConfig
}

func newCluster(t testing.TB) *cluster {
	return &cluster{TB: t, addresses: map[string]string{}, dialled: map[string]int{}}
}

// server is one activator of a cluster, as a real server.
type server struct {
	*Handler
	*httptest.Server
	clock  *clocktesting.FakePassiveClock
	reader *sdkmetric.ManualReader
	logs   *observer.ObservedLogs
	// serving waits for its requests: a client may have its answer before the outcome is counted.
	serving sync.WaitGroup
}

// start starts an activator that serves with next what it does not pass on. It sees the others in their zones.
func (c *cluster) start(name string, sees map[string]string, route Route, next http.HandlerFunc) *server {
	c.Helper()
	a := &server{clock: clocktesting.NewFakePassiveClock(time.Now()), reader: sdkmetric.NewManualReader()}
	var core zapcore.Core
	core, a.logs = observer.New(zap.InfoLevel)
	others := NewActivators(name, 100)
	others.set(sees)
	transport := NewTransport(10, 10, c.trusts)
	transport.Address = c.address
	var err error
	a.Handler, err = NewHandler(next, Options{
		Route: route, Activators: others, Transport: transport, Clock: a.clock, Logger: zap.New(core).Sugar(),
		Timeout:       func(*http.Request) time.Duration { return time.Minute },
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(a.reader)), TracerProvider: tracenoop.NewTracerProvider(),
	})
	if err != nil {
		c.Fatal("NewHandler() =", err)
	}
	named := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.serving.Add(1)
		defer a.serving.Done()
		a.Handler.ServeHTTP(w, r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), nil, revID)))
	})
	a.Server = httptest.NewUnstartedServer(named)
	a.Config.Protocols = &http.Protocols{}
	a.Config.Protocols.SetHTTP1(true)
	a.Config.Protocols.SetHTTP2(true)
	a.Config.Protocols.SetUnencryptedHTTP2(true)
	if c.tls != nil {
		a.Server.TLS, a.EnableHTTP2 = c.tls.Clone(), true
		a.StartTLS()
	} else {
		a.Start()
	}
	c.mu.Lock()
	c.addresses[name] = a.Listener.Addr().String()
	c.mu.Unlock()
	c.Cleanup(func() {
		a.Close()
		transport.CloseIdleConnections()
	})
	return a
}

func (c *cluster) address(name string, _ int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialled[name]++
	return c.addresses[name]
}

func (c *cluster) asked(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dialled[name]
}

// outcomes counts the requests by outcome.
func (a *server) outcomes(t testing.TB) map[outcome]int {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := a.reader.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	got := map[outcome]int{}
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == "libra.placement.forwards" {
				for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
					value, _ := p.Attributes.Value(attribute.Key("outcome"))
					got[outcome(value.AsString())] += int(p.Value)
				}
			}
		}
	}
	return got
}

func (a *server) came(t testing.TB, want map[outcome]int) {
	t.Helper()
	a.serving.Wait()
	if got := a.outcomes(t); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("requests came to %v, want %v", got, want)
	}
}

// to routes to a zone every request that has not been passed on yet.
func to(zone string) Route {
	return func(r *http.Request, forwarded bool, reachable func(string) bool) (string, bool, *http.Request) {
		return zone, !forwarded && reachable(zone), r
	}
}

func stay(r *http.Request, _ bool, _ func(string) bool) (string, bool, *http.Request) {
	return "", false, r
}

// clients returns clients for HTTP/1 and h2c.
func clients(t testing.TB) map[string]*http.Client {
	one := &http.Transport{DisableCompression: true}
	two := &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	t.Cleanup(one.CloseIdleConnections)
	t.Cleanup(two.CloseIdleConnections)
	return map[string]*http.Client{"http1": {Transport: one}, "h2c": {Transport: two}}
}

func fails(t testing.TB) http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) { t.Error("it was served where it came to") }
}

func send(t testing.TB, client *http.Client, url, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(got)
}

func TestARequestIsPassedOnWhole(t *testing.T) {
	for protocol, client := range clients(t) {
		t.Run(protocol, func(t *testing.T) {
			c := newCluster(t)
			var got *http.Request
			var body []byte
			c.start("b", nil, to("near"), func(w http.ResponseWriter, r *http.Request) {
				got = r
				body, _ = io.ReadAll(r.Body)
				w.Header().Set("Trailer", "Grpc-Status")
				w.Header().Set("X-Answer", "yes")
				w.WriteHeader(http.StatusAccepted)
				io.WriteString(w, "there")
				w.Header().Set("Grpc-Status", "7")
			})
			a := c.start("a", map[string]string{"b": "near"}, to("near"), fails(t))
			req, err := http.NewRequest(http.MethodPut, a.URL+"/path?q=1;2", io.MultiReader(strings.NewReader("hello")))
			if err != nil {
				t.Fatal(err)
			}
			req.Host = "cart.shop.example.com"
			req.Header.Set("X-Forwarded-For", "192.0.2.1")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			answer, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusAccepted || string(answer) != "there" || resp.Header.Get("X-Answer") != "yes" || resp.Trailer.Get("Grpc-Status") != "7" {
				t.Errorf("got %s %q, %v, trailer %v", resp.Status, answer, resp.Header, resp.Trailer)
			}
			if got.Method != http.MethodPut || got.Host != req.Host || got.URL.RequestURI() != "/path?q=1;2" || string(body) != "hello" || got.Proto != resp.Proto {
				t.Errorf("the other got %s %s %s of %s, body %q", got.Method, got.URL, got.Proto, got.Host, body)
			}
			if h := got.Header; h.Get(knativeactivator.RevisionHeaderNamespace) != "shop" || h.Get(knativeactivator.RevisionHeaderName) != "cart-00001" || h.Get("X-Forwarded-For") != "192.0.2.1" {
				t.Errorf("the other got the headers %v", h)
			}
			if got.Header.Get(api.ForwardedHeader) != "" {
				t.Error("the function would see that it was passed on")
			}
			a.came(t, map[outcome]int{outcomeForwarded: 1})
		})
	}
}

// Each side can go on before the other has ended.
func TestBodiesAreStreamed(t *testing.T) {
	c := newCluster(t)
	c.start("b", nil, stay, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			fmt.Fprintln(w, lines.Text())
			http.NewResponseController(w).Flush()
		}
	})
	a := c.start("a", map[string]string{"b": "near"}, to("near"), fails(t))
	body, lines := io.Pipe()
	req, err := http.NewRequest(http.MethodPost, a.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := clients(t)["h2c"].Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	echo := bufio.NewReader(resp.Body)
	for i := range 3 {
		fmt.Fprintln(lines, i)
		if got, err := echo.ReadString('\n'); err != nil || got != fmt.Sprintln(i) {
			t.Fatalf("got %q, %v, want %d", got, err, i)
		}
	}
	lines.Close()
	if rest, err := io.ReadAll(echo); err != nil || len(rest) > 0 {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}

func TestAConnectionIsUpgraded(t *testing.T) {
	c := newCluster(t)
	c.start("b", nil, stay, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error("Hijack() =", err)
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, line)
		rw.Flush()
	})
	a := c.start("a", map[string]string{"b": "near"}, to("near"), fails(t))
	conn, err := net.Dial("tcp", a.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	fmt.Fprintln(conn, "hello")
	if got, err := from.ReadString('\n'); err != nil || got != "hello\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestAClientThatGoesAwayIsGoneThere(t *testing.T) {
	for protocol, client := range clients(t) {
		t.Run(protocol, func(t *testing.T) {
			c := newCluster(t)
			reached, gone := make(chan struct{}), make(chan struct{})
			c.start("b", nil, stay, func(_ http.ResponseWriter, r *http.Request) {
				close(reached)
				<-r.Context().Done()
				close(gone)
			})
			a := c.start("a", map[string]string{"b": "near"}, to("near"), fails(t))
			ctx, cancel := context.WithCancel(context.Background())
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				<-reached
				cancel()
			}()
			if resp, err := client.Do(req); err == nil {
				resp.Body.Close()
				t.Error("it was answered")
			}
			<-gone
			a.came(t, map[outcome]int{outcomeCancelled: 1})
		})
	}
}

// A request of which nothing was sent is served here, with its body. The other activator gets none for a
// while.
func TestWhoCannotBeReachedGetsNoMore(t *testing.T) {
	for protocol, client := range clients(t) {
		t.Run(protocol, func(t *testing.T) {
			c := newCluster(t)
			gone := c.start("b", nil, stay, fails(t))
			gone.Close()
			a := c.start("a", map[string]string{"b": "near"}, to("near"), func(w http.ResponseWriter, r *http.Request) {
				io.Copy(w, r.Body)
			})
			for range 3 {
				if status, got := send(t, client, a.URL, "hello"); status != http.StatusOK || got != "hello" {
					t.Fatalf("got %d %q", status, got)
				}
			}
			if n := c.asked("b"); n != 1 {
				t.Errorf("it was tried %d times, want once", n)
			}
			a.came(t, map[outcome]int{outcomeUnreachable: 1, outcomeNoActivator: 3})
			if n := a.logs.FilterMessageSnippet("No activator in the zone").Len(); n != 1 {
				t.Errorf("it was logged %d times, want once", n)
			}
			a.clock.SetTime(a.clock.Now().Add(doubtedFor))
			send(t, client, a.URL, "hello")
			if n := c.asked("b"); n != 2 {
				t.Errorf("it was tried %d times, want again", n)
			}
		})
	}
}

// With what is added to it, a request may have more headers than the other activator takes, which would close the
// connection, fail others' requests on it, and be doubted by everybody. Anybody can send such a request.
func TestTooManyHeadersAreNotPassedOn(t *testing.T) {
	c := newCluster(t)
	c.start("b", nil, stay, func(http.ResponseWriter, *http.Request) {})
	a := c.start("a", map[string]string{"b": "near"}, to("near"), fails(t))
	client := clients(t)["h2c"]
	passed, refused := 0, 0
	for size := http.DefaultMaxHeaderBytes - 5000; size < http.DefaultMaxHeaderBytes+320; size += 59 {
		req, err := http.NewRequest(http.MethodGet, a.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Large", strings.Repeat("a", size))
		resp, err := client.Do(req)
		if err != nil {
			break // this activator does not take it, either
		}
		resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
			passed++
		case http.StatusRequestHeaderFieldsTooLarge:
			refused++
		default:
			t.Fatalf("with %d bytes of headers the answer is %d", size, resp.StatusCode)
		}
		if !a.Activators.reachable("near", a.clock.Now()) {
			t.Fatalf("with %d bytes of headers, and the answer %d, the other activator is doubted", size, resp.StatusCode)
		}
	}
	if passed == 0 || refused == 0 {
		t.Errorf("%d requests were passed on and %d were refused, want some of each", passed, refused)
	}
}

func TestAnotherOfTheZoneIsTried(t *testing.T) {
	c := newCluster(t)
	c.start("b", nil, stay, fails(t)).Close()
	c.start("c", nil, stay, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "c") })
	a := c.start("a", map[string]string{"b": "near", "c": "near"}, to("near"), fails(t))
	for range 10 {
		if status, got := send(t, clients(t)["http1"], a.URL, "hello"); status != http.StatusOK || got != "c" {
			t.Errorf("got %d %q", status, got)
		}
	}
}

func TestTriesAreBounded(t *testing.T) {
	c := newCluster(t)
	sees := map[string]string{}
	for _, name := range []string{"b", "c", "d", "e", "f"} {
		c.start(name, nil, stay, fails(t)).Close()
		sees[name] = "near"
	}
	a := c.start("a", sees, to("near"), func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "here") })
	if status, got := send(t, clients(t)["http1"], a.URL, "hello"); status != http.StatusOK || got != "here" {
		t.Errorf("got %d %q", status, got)
	}
	a.came(t, map[outcome]int{outcomeUnreachable: maxTries, outcomeNoActivator: 1})
}

// A request that was sent is not sent again, and the other activator gets no requests for a while.
func TestWhatFailsThereFails(t *testing.T) {
	for protocol, client := range clients(t) {
		t.Run(protocol, func(t *testing.T) {
			c := newCluster(t)
			var served atomic.Int32
			c.start("b", nil, stay, func(http.ResponseWriter, *http.Request) {
				served.Add(1)
				panic(http.ErrAbortHandler)
			})
			a := c.start("a", map[string]string{"b": "near"}, to("near"), fails(t))
			if status, _ := send(t, client, a.URL, "hello"); status != http.StatusBadGateway {
				t.Errorf("got %d, want %d", status, http.StatusBadGateway)
			}
			if n := served.Load(); n != 1 {
				t.Errorf("it was served %d times", n)
			}
			a.came(t, map[outcome]int{outcomeFailed: 1})
			if a.Activators.reachable("near", a.clock.Now()) {
				t.Error("the next goes there, too")
			}
		})
	}
}

// A request may have run in an activator that has gone since, even if no connection can be made to it any more.
func TestWhatMayHaveRunThereIsNotSentAgain(t *testing.T) {
	c := newCluster(t)
	var served atomic.Int32
	var b *server
	b = c.start("b", nil, stay, func(http.ResponseWriter, *http.Request) {
		if served.Add(1) > 1 {
			b.Listener.Close()
			panic(http.ErrAbortHandler)
		}
	})
	a := c.start("a", map[string]string{"b": "near"}, to("near"), fails(t))
	for _, want := range []int{http.StatusOK, http.StatusBadGateway} { // the second goes over the connection of the first
		resp, err := clients(t)["http1"].Get(a.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("got %d, want %d", resp.StatusCode, want)
		}
	}
	if n := served.Load(); n != 2 {
		t.Errorf("two requests were served %d times", n)
	}
	a.came(t, map[outcome]int{outcomeForwarded: 1, outcomeFailed: 1})
}

// A malformed request says nothing about the connection to the other activator.
func TestWhatAClientSendsWrongDoubtsNobody(t *testing.T) {
	for name, request := range map[string]string{
		"a chunk without a length":    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nno length\r\n",
		"an upgrade to nothing ASCII": "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: caf\u00e9\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.start("b", nil, stay, func(_ http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					panic(http.ErrAbortHandler)
				}
			})
			a := c.start("a", map[string]string{"b": "near"}, to("near"), fails(t))
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", a.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusBadGateway {
				t.Errorf("got %d, want %d", resp.StatusCode, http.StatusBadGateway)
			}
			a.came(t, map[outcome]int{outcomeFailed: 1})
			if !a.Activators.reachable("near", a.clock.Now()) {
				t.Error("others' requests do not go there any more")
			}
		})
	}
}

// A zone without activators is counted once for a request and logged, even when another zone takes the
// request.
func TestAZoneWithoutActivatorsIsToldOf(t *testing.T) {
	c := newCluster(t)
	c.start("b", nil, stay, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "b") })
	twoOfFar := func(r *http.Request, forwarded bool, reachable func(string) bool) (string, bool, *http.Request) {
		for _, zone := range []string{"far", "far", "near"} {
			if !forwarded && reachable(zone) {
				return zone, true, r
			}
		}
		return "", false, r
	}
	a := c.start("a", map[string]string{"b": "near"}, twoOfFar, fails(t))
	if status, got := send(t, clients(t)["http1"], a.URL, "hello"); status != http.StatusOK || got != "b" {
		t.Errorf("got %d %q", status, got)
	}
	a.came(t, map[outcome]int{outcomeForwarded: 1, outcomeNoActivator: 1})
	if n := a.logs.FilterMessageSnippet("No activator in the zone").Len(); n != 1 {
		t.Errorf("it was logged %d times, want once", n)
	}
}

func TestAnAnswerIsNotWaitedForForever(t *testing.T) {
	c := newCluster(t)
	c.start("b", nil, stay, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	a := c.start("a", map[string]string{"b": "near"}, to("near"), fails(t))
	a.Handler.Timeout = func(*http.Request) time.Duration { return -answerMargin }
	if status, _ := send(t, clients(t)["http1"], a.URL, "hello"); status < 500 {
		t.Errorf("got %d", status)
	}
	a.came(t, map[outcome]int{outcomeFailed: 1})
}

// An activator with as many requests as it takes counts as unreachable.
func TestAnActivatorGetsNoMoreThanItTakes(t *testing.T) {
	c := newCluster(t)
	reached, end := make(chan struct{}), make(chan struct{})
	c.start("b", nil, stay, func(http.ResponseWriter, *http.Request) {
		reached <- struct{}{}
		<-end
	})
	a := c.start("a", map[string]string{"b": "near"}, to("near"), func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "here") })
	a.Activators.most = 2
	client := clients(t)["http1"]
	var sending sync.WaitGroup
	for range 2 {
		sending.Go(func() { send(t, client, a.URL, "") })
		<-reached
	}
	if _, got := send(t, client, a.URL, ""); got != "here" {
		t.Errorf("got %q, want it served here", got)
	}
	close(end)
	sending.Wait()
	a.came(t, map[outcome]int{outcomeForwarded: 2, outcomeNoActivator: 1})
	if to := a.Activators.take("near", a.clock.Now()); to == nil || to.outstanding != 1 {
		t.Errorf("it has %v, want it free again", to)
	}
}

func TestWhatAClientSendsMovesNothing(t *testing.T) {
	c := newCluster(t)
	var there atomic.Int32
	c.start("b", map[string]string{"a": "far"}, to("far"), func(http.ResponseWriter, *http.Request) { there.Add(1) })
	var here atomic.Int32
	a := c.start("a", map[string]string{"b": "near"}, to("near"), func(_ http.ResponseWriter, r *http.Request) {
		here.Add(1)
		if r.Header.Get(api.ForwardedHeader) != "" {
			t.Error("the function sees the header")
		}
	})
	// A request that says it was passed on is served here.
	send(t, clients(t)["http1"], a.URL, "", api.ForwardedHeader, "no")
	if here.Load() != 1 || there.Load() != 0 {
		t.Errorf("served %d times here and %d there", here.Load(), there.Load())
	}
	// A request that has the proxy remove the headers between the two activators is still passed on only once.
	send(t, clients(t)["http1"], a.URL, "", "Connection", api.ForwardedHeader+", "+knativeactivator.RevisionHeaderName)
	if here.Load() != 1 || there.Load() != 1 {
		t.Errorf("served %d times here and %d there", here.Load(), there.Load())
	}
}

// A request is passed on at most once, whatever the activators' views of the zones, and is served once.
func TestOneHopAtMost(t *testing.T) {
	client := clients(t)["http1"]
	names, zones := []string{"a", "b", "c"}, []string{"x", "y", "z"}
	c := newCluster(t)
	var mu sync.Mutex
	var served, passed int
	wants := map[string]string{} // by activator: the zone that it routes to
	all := map[string]*server{}
	for _, name := range names {
		route := func(r *http.Request, forwarded bool, reachable func(string) bool) (string, bool, *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			zone := wants[name]
			forward := !forwarded && zone != "" && reachable(zone)
			if forward {
				passed++
			}
			return zone, forward, r
		}
		all[name] = c.start(name, nil, route, func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			served++
		})
	}
	hops := 0
	rapid.Check(t, func(rt *rapid.T) {
		mu.Lock()
		for _, name := range names {
			wants[name] = rapid.SampledFrom(append(slices.Clone(zones), "")).Draw(rt, "wants")
			sees := map[string]string{}
			for _, other := range names {
				// Even itself.
				if rapid.Bool().Draw(rt, "sees") {
					sees[other] = rapid.SampledFrom(zones).Draw(rt, "in")
				}
			}
			all[name].Activators.set(sees)
		}
		served, passed = 0, 0
		mu.Unlock()
		header := []string{}
		if rapid.Bool().Draw(rt, "says") {
			header = []string{"Connection", api.ForwardedHeader}
		}
		first := rapid.SampledFrom(names).Draw(rt, "first")
		if status, _ := send(t, client, all[first].URL, "hello", header...); status != http.StatusOK {
			rt.Errorf("got %d", status)
		}
		mu.Lock()
		defer mu.Unlock()
		if served != 1 || passed > 1 {
			rt.Fatalf("it was passed on %d times and served %d times", passed, served)
		}
		hops += passed
	})
	if hops == 0 {
		t.Error("none was passed on: that tests nothing")
	}
}

func TestEncrypted(t *testing.T) {
	certificate, roots := selfSigned(t, "kn-routing")
	_, strangers := selfSigned(t, "kn-routing")
	for name, tc := range map[string]struct {
		roots *x509.CertPool
		want  string
	}{"trusted": {roots, "there"}, "not trusted": {strangers, "here"}} {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				c := newCluster(t)
				c.tls = &tls.Config{Certificates: []tls.Certificate{certificate}}
				c.trusts = func() (*tls.Config, error) {
					return &tls.Config{RootCAs: tc.roots, ServerName: "kn-routing", MinVersion: tls.VersionTLS13}, nil
				}
				c.start("b", nil, stay, func(w http.ResponseWriter, r *http.Request) {
					if r.Proto != protocol || r.TLS == nil {
						t.Errorf("got %s, TLS %v", r.Proto, r.TLS)
					}
					io.WriteString(w, "there")
				}).Config.ErrorLog = nil
				a := c.start("a", map[string]string{"b": "near"}, to("near"), func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "here") })
				own := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "kn-routing"}, ForceAttemptHTTP2: protocol == "HTTP/2.0"}
				defer own.CloseIdleConnections()
				if _, got := send(t, &http.Client{Transport: own}, a.URL, "hello"); got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
			})
		}
	}
}

func selfSigned(t *testing.T, name string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}
