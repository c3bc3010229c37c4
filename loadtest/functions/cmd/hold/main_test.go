package main

import (
	"context"
	"testing"
)

func TestWork(t *testing.T) {
	did, err := work(t.Context(), []byte("8 20ms"))
	if err != nil || did != (result{MiB: 8}) {
		t.Errorf("it held %v, %v", did, err)
	}
	for _, body := range []string{"8", "8 x", "0 1s", "5000 1s", "8 2m", "x 1s"} {
		if did, err := work(t.Context(), []byte(body)); err == nil {
			t.Errorf("%q is taken, and held %v", body, did)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := work(ctx, []byte("8 1m")); err == nil {
		t.Error("it goes on for a client that went away")
	}
}
