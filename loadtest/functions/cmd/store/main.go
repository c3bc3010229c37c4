// Command store is what the demo's functions wait for: an object store and a table of rows,
// as far away as such things are. It reads each upload at a fixed bandwidth,
// STORE_KIB_PER_SECOND (256), and takes a fixed time to answer a query, STORE_QUERY_TIME (40ms).
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"libra.dev/libra/loadtest/functions/server"
	"libra.dev/libra/loadtest/functions/storeapi"
)

const (
	rateEnv   = "STORE_KIB_PER_SECOND"
	leastRate = 256
	mostRate  = 1 << 20

	queryTimeEnv   = "STORE_QUERY_TIME"
	usualQueryTime = 40 * time.Millisecond
	mostQueryTime  = 10 * time.Second

	chunkBytes = 8 << 10
	// A small window makes the sender feel the bandwidth at once, as a long
	// line would, and not only when megabytes of buffers are full.
	receiveBufferBytes = 32 << 10
)

// paced reads from r no faster than bytesPerSecond.
type paced struct {
	bytesPerSecond int64

	r     io.Reader
	start time.Time
	read  int64
}

func (p *paced) Read(b []byte) (int, error) {
	due := p.start.Add(time.Duration(p.read) * time.Second / time.Duration(p.bytesPerSecond))
	time.Sleep(time.Until(due))
	n, err := p.r.Read(b[:min(len(b), chunkBytes)])
	p.read += int64(n)
	return n, err
}

// store has the bandwidth of one upload, and the time that a query takes.
type store struct {
	bytesPerSecond int64
	queryTime      time.Duration
}

func (s store) upload(w http.ResponseWriter, r *http.Request) {
	sum := crc32.NewIEEE()
	n, err := io.Copy(sum, &paced{s.bytesPerSecond, r.Body, time.Now(), 0})
	if err != nil {
		server.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	server.WriteJSON(w, http.StatusOK, storeapi.Stored{Bytes: n, CRC32: sum.Sum32()})
}

func (s store) query(w http.ResponseWriter, r *http.Request) {
	ids, err := parseIDs(r.URL.Query().Get("ids"))
	if err != nil {
		server.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	rows := make([]storeapi.Row, 0, len(ids))
	for _, id := range ids {
		rows = append(rows, storeapi.RowOf(id))
	}
	time.Sleep(s.queryTime)
	server.WriteJSON(w, http.StatusOK, rows)
}

func parseIDs(list string) ([]int, error) {
	fields := strings.Split(list, ",")
	if len(fields) > storeapi.MaxRows {
		return nil, fmt.Errorf("%d ids; a query takes at most %d", len(fields), storeapi.MaxRows)
	}
	ids := make([]int, 0, len(fields))
	for _, f := range fields {
		id, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("ids must be numbers, separated by commas: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (s store) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+storeapi.ObjectsPath+"{key}", s.upload)
	mux.HandleFunc("GET "+storeapi.RowsPath, s.query)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		server.WriteJSON(w, http.StatusOK, json.RawMessage(`{}`))
	})
	return mux
}

func rateOf(kibPerSecond string) (bytesPerSecond int64, err error) {
	if kibPerSecond == "" {
		return leastRate << 10, nil
	}
	rate, err := strconv.ParseInt(kibPerSecond, 10, 64)
	if err != nil || rate < leastRate || rate > mostRate {
		return 0, fmt.Errorf("%s is %q; it must be a number of KiB from %d to %d", rateEnv, kibPerSecond, leastRate, mostRate)
	}
	return rate << 10, nil
}

func queryTimeOf(duration string) (time.Duration, error) {
	if duration == "" {
		return usualQueryTime, nil
	}
	takes, err := time.ParseDuration(duration)
	if err != nil || takes < 0 || takes > mostQueryTime {
		return 0, fmt.Errorf("%s is %q; it must be a duration from 0s to %v, such as 2ms", queryTimeEnv, duration, mostQueryTime)
	}
	return takes, nil
}

func main() {
	rate, badRate := rateOf(os.Getenv(rateEnv))
	takes, badTime := queryTimeOf(os.Getenv(queryTimeEnv))
	if err := errors.Join(badRate, badTime); err != nil {
		fmt.Fprintln(os.Stderr, "store:", err)
		os.Exit(1)
	}
	server.Main(store{rate, takes}.handler(), net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBufferBytes)
		})
		if err != nil {
			return err
		}
		return failed
	}})
}
