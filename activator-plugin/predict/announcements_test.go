package predict

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

func announce(changes string) string { return `{"v":1,"functions":[` + changes + `]}` }

func change(version string, cpuMilli int64) string {
	return fmt.Sprintf(`{"function":"ns/rev-00001","version":%q,"offset":[%d,0],"largest":[0,0]}`, version, cpuMilli)
}

func TestAnnouncedOffsetIsUsedAtOnce(t *testing.T) {
	s := newServer(t, http.StatusOK, versionJSON(t, "7"))
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, s.URL, clk)
	cpu := func() int64 {
		t.Helper()
		p, ok := ask(c, 1000) // 500 and the offset
		if !ok {
			t.Fatal("no prediction")
		}
		return p.Demand.CPUMilli
	}
	if got := cpu(); got != 700 {
		t.Fatalf("CPU as fetched is %d, want 700", got)
	}
	c.hear(announce(change("8", 300)))
	if got, asked := cpu(), s.asked.Load(); got != 800 || asked != 2 {
		t.Errorf("CPU with the announced offset is %d after %d fetches, want 800 after 2", got, asked)
	}
	// The replica that answered did not know the new version yet.
	if got, asked := cpu(), s.asked.Load(); got != 800 || asked != 2 {
		t.Errorf("CPU after an older table is %d after %d fetches, want 800 after 2", got, asked)
	}
	s.say(http.StatusOK, versionJSON(t, "8"))
	clk.SetTime(clk.Now().Add(minRetry))
	cpu()
	if got := cpu(); got != 700 {
		t.Errorf("CPU of the announced version is %d, want what the table says of it, 700", got)
	}
	clk.SetTime(clk.Now().Add(refreshAfter - time.Nanosecond))
	c.hear(announce(change("8", 300)))
	if got, asked := cpu(), s.asked.Load(); got != 700 || asked != 3 {
		t.Errorf("CPU after news that are known is %d after %d fetches, want 700 after 3", got, asked)
	}
	// A predictor that has lost its store begins again.
	s.say(http.StatusOK, versionJSON(t, "2"))
	c.hear(announce(change("2", 0)))
	cpu()
	if got := c.find(name).state.Load().table.Version; got != 2 {
		t.Errorf("version %d, want the announced 2", got)
	}
}

// A replica that has not heard of the function yet says that it does not know it.
func TestAReplicaThatDoesNotKnowWhatWasAnnounced(t *testing.T) {
	s := newServer(t, http.StatusOK, versionJSON(t, "8"))
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, s.URL, clk)
	ask(c, 1)
	c.hear(announce(change("8", 200)))
	s.say(http.StatusNotFound, "{}")
	clk.SetTime(clk.Now().Add(refreshAfter))
	ask(c, 1)
	if p, ok := ask(c, 1); !ok || s.asked.Load() != 2 {
		t.Errorf("after %d fetches Predict() = %v, %v, want the table in hand after 2", s.asked.Load(), p, ok)
	}
	s.say(http.StatusOK, versionJSON(t, "9"))
	clk.SetTime(clk.Now().Add(minRetry))
	ask(c, 1)
	ask(c, 1)
	if got := c.find(name).state.Load().table.Version; got != 9 {
		t.Errorf("version %d, want that of the replica that knows the function, 9", got)
	}
	// Every one says so for as long as a table may be kept.
	s.say(http.StatusNotFound, "{}")
	for range int(2 * dropAfter / maxRetry) {
		clk.SetTime(clk.Now().Add(maxRetry))
		ask(c, 1)
	}
	if p, ok := ask(c, 1); ok {
		t.Errorf("Predict() = %v of a function that nobody has known for %v", p, 2*dropAfter)
	}
}

func TestAnnouncedDrop(t *testing.T) {
	s := newServer(t, http.StatusOK, versionJSON(t, "7"))
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, s.URL, clk)
	ask(c, 1)
	c.hear(announce(`{"function":"ns/rev-00001","version":""}`))
	if p, ok := ask(c, 1); ok || s.asked.Load() != 1 {
		t.Errorf("of a dropped function, Predict() = %v, %v with %d fetches, want none with 1", p, ok, s.asked.Load())
	}
}

// After a refit the table may have risen and its offset shrunk: neither the table in hand
// nor an older one that is fetched may get the smaller offset.
func TestAnnouncedOffsetNeverLowers(t *testing.T) {
	for _, tc := range []struct{ own, announced, want api.Resources }{
		{own: resources(200, 10), announced: resources(50, 5), want: resources(200, 10)},
		{own: resources(200, 10), announced: resources(300, 20), want: resources(300, 20)},
		{own: resources(200, 10), announced: resources(50, 20), want: resources(200, 20)},
		{own: resources(200, 10), announced: resources(300, 5), want: resources(300, 10)},
	} {
		t.Run(fmt.Sprint(tc.own, tc.announced), func(t *testing.T) {
			clk := clocktesting.NewFakeClock(time.Now())
			c := newClient(t, "http://localhost", clk)
			table := exampleTable()
			table.offset = tc.own
			f := know(c, name, state{table: table, fetched: clk.Now(), due: clk.Now()})
			c.hear(announce(fmt.Sprintf(`{"function":"ns/rev-00001","version":"9","offset":[%d,%d],"largest":[0,0]}`,
				tc.announced.CPUMilli, tc.announced.MemoryBytes)))
			if got := f.state.Load().table.offset; got != tc.want {
				t.Errorf("the table in hand has offset %v, want %v", got, tc.want)
			}

			older := *table
			older.Version = 8
			c.take(name, f, 0, &older, nil, 0)
			if got := f.state.Load().table; got.Version != 8 || got.offset != tc.want {
				t.Errorf("the older table that was fetched is %d with offset %v, want 8 with %v", got.Version, got.offset, tc.want)
			}

			announced := *table
			announced.Version, announced.offset = 9, tc.announced
			c.take(name, f, 1, &announced, nil, 0)
			if got := f.state.Load().table; got.Version != 9 || got.offset != tc.announced {
				t.Errorf("the announced table is %d with offset %v, want 9 with its own, %v", got.Version, got.offset, tc.announced)
			}
		})
	}
}

// While demands grow, the announced offset raises answers beyond the largest of the table
// in hand.
func TestAnnouncedEndIsReached(t *testing.T) {
	for _, tc := range []struct {
		largest, want int64
	}{
		{largest: 900, want: 900},
		{largest: 600, want: 700},
	} {
		clk := clocktesting.NewFakeClock(time.Now())
		c := newClient(t, "http://localhost", clk)
		table := exampleTable()
		table.largest = resources(700, 1<<30)
		know(c, name, state{table: table, fetched: clk.Now(), due: clk.Now().Add(time.Hour)})
		c.hear(announce(fmt.Sprintf(`{"function":"ns/rev-00001","version":"9","offset":[1000,0],"largest":[%d,0]}`, tc.largest)))
		if p, ok := c.Predict(t.Context(), name, 1000); !ok || p.Demand.CPUMilli != tc.want {
			t.Errorf("announced with %d, %d are predicted, %v; want %d", tc.largest, p.Demand.CPUMilli, ok, tc.want)
		}
	}
}

func resources(cpuMilli, memoryBytes int64) api.Resources {
	return api.Resources{CPUMilli: cpuMilli, MemoryBytes: memoryBytes}
}

func TestAnnouncedTableIsFetchedWhileInUse(t *testing.T) {
	for _, tc := range []struct {
		name    string
		unused  time.Duration
		payload string
		asked   int32
	}{
		{"in use", refreshAfter, announce(change("8", 0)), 1},
		{"not in use", refreshAfter + time.Nanosecond, announce(change("8", 0)), 0},
		{"in hand", 0, announce(change("7", 0)), 0},
		{"dropped", 0, announce(`{"function":"ns/rev-00001","version":""}`), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t, http.StatusOK, versionJSON(t, "8"))
			clk := clocktesting.NewFakeClock(time.Now())
			c := newClient(t, s.URL, clk)
			f := know(c, name, state{table: exampleTable(), fetched: clk.Now(), due: clk.Now().Add(time.Hour)})
			f.use(clk.Now())
			clk.SetTime(clk.Now().Add(tc.unused))
			c.hear(tc.payload)
			c.fetches.Wait()
			if got := s.asked.Load(); got != tc.asked {
				t.Errorf("the predictor was asked %d times, want %d", got, tc.asked)
			}
			if table := f.state.Load().table; tc.asked > 0 && table.Version != 8 {
				t.Errorf("version %d in hand, want 8", table.Version)
			}
		})
	}
}

func TestNothingIsFetchedAfterClose(t *testing.T) {
	s := newServer(t, http.StatusOK, versionJSON(t, "8"))
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, s.URL, clk)
	f := know(c, name, state{table: exampleTable(), fetched: clk.Now(), due: clk.Now().Add(time.Hour)})
	f.use(clk.Now())
	c.Close()
	c.hear(announce(change("8", 0)))
	if f.flight.Load() != nil || f.state.Load().failures != 0 {
		t.Error("a fetch was begun")
	}
}

// An announcement that arrives during a fetch may be newer than the answer.
func TestAnnouncedDuringAFetch(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, "http://localhost", clk)
	table := exampleTable()
	f := know(c, name, state{table: table, fetched: clk.Now(), due: clk.Now()})
	c.hear(announce(change("9", 300)))
	fetched := *table
	fetched.Version = 8
	c.take(name, f, 0, &fetched, nil, 0)
	s := f.state.Load()
	if s.table.Version != 8 || s.table.offset.CPUMilli != 300 || s.due != clk.Now() {
		t.Errorf("version %d with offset %v due in %v, want 8 with 300 now", s.table.Version, s.table.offset, s.due.Sub(clk.Now()))
	}
}

func TestHear(t *testing.T) {
	for _, tc := range []struct {
		name, payload, want string
	}{
		{"new version", announce(change("8", 0)), "applied"},
		{"version in hand", announce(change("7", 0)), "known"},
		{"dropped", announce(`{"function":"ns/rev-00001","version":""}`), "applied"},
		{"another function", announce(`{"function":"ns/other","version":"8","offset":[0,0],"largest":[0,0]}`), "other_function"},
		{"another dropped", announce(`{"function":"ns/other","version":""}`), "other_function"},
		{"no JSON", `<html>`, "malformed"},
		{"empty", ``, "malformed"},
		{"no version", `{"functions":[]}`, "unknown_version"},
		{"later version", `{"v":2,"functions":{"ns/rev-00001":"8"}}`, "unknown_version"},
		{"functions missing", `{"v":1}`, "malformed"},
		{"functions of another form", `{"v":1,"functions":{}}`, "malformed"},
		{"no namespace", announce(`{"function":"rev-00001","version":"8","offset":[0,0],"largest":[0,0]}`), "malformed"},
		{"version of a function", announce(change("eight", 0)), "malformed"},
		{"negative offset", announce(change("8", -1)), "malformed"},
		{"absurd offset", announce(change("8", 1<<40)), "malformed"},
		{"short end", announce(`{"function":"ns/rev-00001","version":"8","offset":[1,1],"largest":[1]}`), "malformed"},
		{"no end", announce(`{"function":"ns/rev-00001","version":"8","offset":[1,1]}`), "malformed"},
		{"no offset", announce(`{"function":"ns/rev-00001","version":"8","largest":[1,1]}`), "malformed"},
		{"short offset", announce(`{"function":"ns/rev-00001","version":"8","offset":[1],"largest":[1,1]}`), "malformed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clk := clocktesting.NewFakeClock(time.Now())
			reader := sdkmetric.NewManualReader()
			c := newMeasuredClient(t, "http://localhost", clk, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), zaptest.NewLogger(t).Sugar())
			before := state{table: exampleTable(), fetched: clk.Now(), due: clk.Now().Add(refreshAfter)}
			f := know(c, name, before)
			c.hear(tc.payload)
			if diff := cmp.Diff(map[string]int64{tc.want: 1}, counts(t, reader, "libra.predict.announcements")); diff != "" {
				t.Error("Announcements (-want, +got):\n" + diff)
			}
			if changed := *f.state.Load() != before; changed != (tc.want == "applied") {
				t.Errorf("changed what is known: %v", changed)
			}
			if c.count != 1 {
				t.Error("a function became known that nobody called")
			}
		})
	}
}

func TestOneBadChangeLeavesTheOthers(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, "http://localhost", clk)
	f := know(c, name, state{table: exampleTable(), fetched: clk.Now(), due: clk.Now().Add(refreshAfter)})
	c.hear(announce(change("eight", 0) + "," + change("8", 300)))
	if got := f.state.Load().table.offset.CPUMilli; got != 300 {
		t.Errorf("offset %d, want 300", got)
	}
}

// Announcements do not keep a function that only other activators call.
func TestAnnouncementsKeepNoFunction(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, "http://localhost", clk)
	f := know(c, name, state{table: exampleTable(), fetched: clk.Now(), due: clk.Now()})
	f.use(clk.Now())
	clk.SetTime(clk.Now().Add(forgetAfter + time.Second))
	c.hear(announce(change("8", 0)))
	if !f.idle(clk.Now()) {
		t.Error("the function is taken to be in use")
	}
}

func newListener(t *testing.T, redisAddr string) *Client {
	t.Helper()
	var server redisconn.Server
	if redisAddr != "" {
		server = redisconn.MustParse(redisAddr)
	}
	c, err := New(Options{
		URL: "http://localhost", Redis: server,
		Clock: clock.RealClock{}, Logger: zaptest.NewLogger(t).Sugar(), MeterProvider: noop.NewMeterProvider(),
	})
	if err != nil {
		t.Fatal("New() =", err)
	}
	t.Cleanup(c.Close)
	return c
}

// listen runs the client until the test ends.
func listen(t *testing.T, c *Client) {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		c.Run(ctx)
		close(stopped)
	}()
	t.Cleanup(func() {
		cancel()
		<-stopped
	})
}

func TestRunWithRedis(t *testing.T) {
	addr := redistest.Start(t)
	publisher := redis.NewClient(&redis.Options{Addr: addr})
	defer publisher.Close()
	c := newListener(t, addr)
	later := time.Now().Add(time.Hour)
	f := know(c, name, state{table: exampleTable(), fetched: time.Now(), due: later})
	other := know(c, types.NamespacedName{Namespace: "ns", Name: "other"}, state{fetched: time.Now(), due: later})
	due := func(f *function) bool { return f.state.Load().due.Before(later) }

	listen(t, c)

	eventually(t, "all are due once connected", func() bool { return due(f) && due(other) })

	publish := func(payload string) {
		t.Helper()
		if n, err := publisher.Publish(t.Context(), announcementsChannel, payload).Result(); err != nil || n != 1 {
			t.Fatalf("Publish() to %d, %v, want to 1", n, err)
		}
	}
	publish("<html>")
	publish(announce(change("8", 300)))
	eventually(t, "the announced offset is used", func() bool { return f.state.Load().table.offset.CPUMilli == 300 })

	// Announcements are missed while the connection is away.
	since := *c.hearing.Load()
	other.state.Store(&state{due: later})
	if err := publisher.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are due once connected again", func() bool { return due(other) })
	if again := c.hearing.Load(); again == nil || !again.After(since) {
		t.Errorf("heard without a gap since %v, want since later than %v", again, since)
	}
	eventually(t, "announcements are heard again", func() bool {
		publisher.Publish(t.Context(), announcementsChannel, announce(change("9", 400)))
		return f.state.Load().table.offset.CPUMilli == 400
	})
}

// In a Redis Cluster a message reaches all servers, whichever the predictor and the
// client are connected to.
func TestRunWithCluster(t *testing.T) {
	addrs := redistest.StartCluster(t)
	c := newListener(t, strings.Join(addrs, ","))
	later := time.Now().Add(time.Hour)
	f := know(c, name, state{table: exampleTable(), fetched: time.Now(), due: later})
	listen(t, c)
	eventually(t, "all are due once connected", func() bool { return f.state.Load().due.Before(later) })
	for i, addr := range addrs {
		publisher := redis.NewClient(&redis.Options{Addr: addr})
		defer publisher.Close()
		offset := 300 + int64(i)
		eventually(t, "what "+addr+" was told is heard", func() bool {
			publisher.Publish(t.Context(), announcementsChannel, announce(change(strconv.Itoa(8+i), offset)))
			return f.state.Load().table.offset.CPUMilli == offset
		})
	}
}

// While nothing is announced, the client also pings Redis.
func TestRightsOfTheActivator(t *testing.T) {
	s := redistest.StartSecured(t)
	server := s.As(t, "activator")
	s.CheckRights(t, "activator", 1, func(ctx context.Context) error {
		c, err := New(Options{
			URL: "http://localhost", Redis: server,
			Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: noop.NewMeterProvider(),
		})
		if err != nil {
			return err
		}
		defer c.Close()
		c.silence = 20 * time.Millisecond
		f := know(c, name, state{table: exampleTable(), fetched: time.Now(), due: time.Now().Add(time.Hour)})
		ctx, cancel := context.WithCancel(ctx)
		stopped := make(chan struct{})
		go func() {
			c.Run(ctx)
			close(stopped)
		}()
		defer func() {
			cancel()
			<-stopped
		}()
		for _, offset := range []int64{300, 301} {
			err := wait.PollUntilContextCancel(ctx, time.Millisecond, true, func(ctx context.Context) (bool, error) {
				s.Admin.Publish(ctx, announcementsChannel, announce(change("8", offset)))
				// Once anything is refused, there is nothing more to wait for.
				log, err := s.Admin.ACLLog(ctx, 1).Result()
				return len(log) > 0 || f.state.Load().table.offset.CPUMilli == offset, err
			})
			if err != nil {
				return err
			}
			time.Sleep(5 * c.silence)
		}
		return nil
	})
}

// forward forwards connections to addr. Connections made before it is muted stay open,
// but bring nothing more.
func forward(t *testing.T, addr string) (listening string, mute func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu    sync.Mutex
		muted []*atomic.Bool
		wg    sync.WaitGroup
	)
	wg.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", addr)
			if err != nil {
				in.Close()
				continue
			}
			silent := &atomic.Bool{}
			mu.Lock()
			muted = append(muted, silent)
			mu.Unlock()
			wg.Go(func() {
				io.Copy(out, in)
				out.Close()
			})
			wg.Go(func() {
				io.Copy(unless{in, silent}, out)
				in.Close()
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		wg.Wait()
	})
	return listener.Addr().String(), func() {
		mu.Lock()
		defer mu.Unlock()
		for _, silent := range muted {
			silent.Store(true)
		}
	}
}

// unless drops what is written once it is silent.
type unless struct {
	io.Writer
	silent *atomic.Bool
}

func (w unless) Write(p []byte) (int, error) {
	if w.silent.Load() {
		return len(p), nil
	}
	return w.Writer.Write(p)
}

func TestNothingIsHeardAfterRun(t *testing.T) {
	c := newListener(t, redistest.Start(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		c.Run(ctx)
		close(stopped)
	}()
	eventually(t, "connected", func() bool { return c.hearing.Load() != nil })
	cancel()
	<-stopped
	if c.hearing.Load() != nil {
		t.Error("takes itself to hear announcements")
	}
}

// The client gives up a connection that stays open but brings nothing more.
func TestRunWithSilentRedis(t *testing.T) {
	addr, mute := forward(t, redistest.Start(t))
	c := newListener(t, addr)
	c.silence = 20 * time.Millisecond
	later := time.Now().Add(time.Hour)
	f := know(c, name, state{due: later})
	due := func() bool { return f.state.Load().due.Before(later) }
	listen(t, c)

	eventually(t, "connected", due)
	f.state.Store(&state{due: later})
	// Mute only once: connections made later are heard, and all earlier ones are given up.
	mute()
	eventually(t, "connected again", due)
}

func TestRunWithoutRedis(t *testing.T) {
	for name, addr := range map[string]string{"none": "", "away": "127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			c := newListener(t, addr)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			c.Run(ctx)
			if c.hearing.Load() != nil {
				t.Error("takes itself to hear announcements")
			}
		})
	}
}
