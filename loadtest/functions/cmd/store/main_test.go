package main

import (
	"context"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/functions/storeapi"
)

func TestStore(t *testing.T) {
	srv := httptest.NewServer(store{leastRate << 10, usualQueryTime}.handler())
	defer srv.Close()
	client := storeapi.NewClient(srv.URL)
	ctx := context.Background()

	stored, err := client.Put(ctx, "key", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(storeapi.Stored{Bytes: 5, CRC32: crc32.ChecksumIEEE([]byte("hello"))}, stored); diff != "" {
		t.Errorf("upload (-want +got):\n%s", diff)
	}

	rows, err := client.Rows(ctx, []int{3, 1})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]storeapi.Row{storeapi.RowOf(3), storeapi.RowOf(1)}, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}

	for _, ids := range [][]int{nil, make([]int, storeapi.MaxRows+1)} {
		if _, err := client.Rows(ctx, ids); err == nil || !strings.Contains(err.Error(), "ids") {
			t.Errorf("%d ids: got %v, want an error that names ids", len(ids), err)
		}
	}
}

func TestAQueryTakesItsTime(t *testing.T) {
	for _, want := range []time.Duration{0, 2 * time.Millisecond, usualQueryTime} {
		synctest.Test(t, func(t *testing.T) {
			began, answer := time.Now(), httptest.NewRecorder()
			store{leastRate << 10, want}.handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, storeapi.RowsPath+"?ids=1", http.NoBody))
			if took := time.Since(began); answer.Code != http.StatusOK || took != want {
				t.Errorf("a query is answered with %d after %v, want %d after %v", answer.Code, took, http.StatusOK, want)
			}
		})
	}
}

func TestRateThatIsRefused(t *testing.T) {
	for rate, want := range map[string]int64{"": 256 << 10, "1024": 1 << 20} {
		if got, err := rateOf(rate); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", rate, got, err, want)
		}
	}
	for _, rate := range []string{"0", "fast", "-1", "9999999999"} {
		if _, err := rateOf(rate); err == nil || !strings.Contains(err.Error(), rateEnv) {
			t.Errorf("%q: got %v, want an error that names %s", rate, err, rateEnv)
		}
	}
}

func TestQueryTimeThatIsRefused(t *testing.T) {
	for duration, want := range map[string]time.Duration{"": 40 * time.Millisecond, "2ms": 2 * time.Millisecond, "0s": 0} {
		if got, err := queryTimeOf(duration); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", duration, got, err, want)
		}
	}
	for _, duration := range []string{"2", "soon", "-1ms", "1h"} {
		if _, err := queryTimeOf(duration); err == nil || !strings.Contains(err.Error(), queryTimeEnv) {
			t.Errorf("%q: got %v, want an error that names %s", duration, err, queryTimeEnv)
		}
	}
}
