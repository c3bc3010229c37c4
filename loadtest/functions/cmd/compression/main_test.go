package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"slices"
	"testing"
)

func TestCompressUnpacksToTheBody(t *testing.T) {
	for _, size := range []int{0, 1, blockBytes - 1, blockBytes, 5*blockBytes + 17} {
		for _, workers := range []int{1, 2, 3} {
			body := bytes.Repeat([]byte("sphinx of black quartz "), size/23+1)[:size]
			members, err := compress(context.Background(), body, workers)
			if err != nil {
				t.Fatalf("%d bytes, %d workers: %v", size, workers, err)
			}
			if size == 0 {
				if len(members) != 0 {
					t.Errorf("an empty body made %d members", len(members))
				}
				continue
			}
			z, err := gzip.NewReader(bytes.NewReader(slices.Concat(members...)))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, body) {
				t.Errorf("%d bytes, %d workers: unpacked to something else", size, workers)
			}
		}
	}
}

func TestCompressStopsWithItsRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := compress(ctx, make([]byte, 10*blockBytes), 2); err == nil {
		t.Error("compressed for a client that went away")
	}
}
