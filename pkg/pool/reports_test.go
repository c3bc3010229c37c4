package pool

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/pkg/report"
)

func TestReportsAreReplacedByWriter(t *testing.T) {
	ctx := redistest.Context(t)
	r := NewRedis(redisconn.MustParse(redistest.StartServer(t).Addr))
	t.Cleanup(func() { r.Close() })
	for _, put := range []struct {
		writer  string
		encoded map[report.Slot][]byte
	}{
		{"a", map[report.Slot][]byte{1: []byte("old"), 2: []byte("a2")}},
		{"b", map[report.Slot][]byte{2: []byte("b2\x00\xff")}},
		{"a", map[report.Slot][]byte{1: []byte("a1")}},
	} {
		if err := r.PutReports(ctx, put.writer, put.encoded); err != nil {
			t.Fatal(err)
		}
	}
	got, err := r.ReadReports(ctx, []report.Slot{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	want := map[report.Slot]map[string]string{1: {"a": "a1"}, 2: {"a": "a2", "b": "b2\x00\xff"}, 3: {}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Reports (-want +got):\n%s", diff)
	}
	left, err := r.calls.PTTL(ctx, reportsKey(2)).Result()
	if err != nil || left <= 0 || left > report.Keep {
		t.Errorf("A slot is kept for %v (error: %v), want at most %v", left, err, report.Keep)
	}
}
