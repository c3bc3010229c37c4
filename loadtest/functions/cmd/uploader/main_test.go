package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/functions/server"
	"libra.dev/libra/loadtest/functions/storeapi"
)

func TestWorkStoresTheBodyPacked(t *testing.T) {
	body := bytes.Repeat([]byte("a line of the file\n"), 20_000)
	var got []byte
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wire, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		z, err := gzip.NewReader(bytes.NewReader(wire))
		if err != nil {
			t.Error(err)
			return
		}
		if got, err = io.ReadAll(z); err != nil {
			t.Error(err)
		}
		server.WriteJSON(w, http.StatusOK, storeapi.Stored{Bytes: int64(len(wire)), CRC32: crc32.ChecksumIEEE(wire)})
	}))
	defer store.Close()

	did, err := uploader{store: storeapi.NewClient(store.URL)}.work(context.Background(), body)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, body) {
		t.Errorf("the store got %d bytes that are not the body", len(got))
	}
	r := did.(result)
	if r.Bytes != len(body) || r.CRC32 != crc32.ChecksumIEEE(body) || r.Stored == 0 || r.Stored >= int64(len(body)) {
		t.Errorf("it says it did %+v", r)
	}
}

func TestWorkTellsWhenTheStoreGotSomethingElse(t *testing.T) {
	for want, answer := range map[string]http.HandlerFunc{
		"checksum": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			server.WriteJSON(w, http.StatusOK, storeapi.Stored{CRC32: 1})
		},
		"out of space": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "out of space", http.StatusInsufficientStorage)
		},
	} {
		store := httptest.NewServer(answer)
		_, err := uploader{store: storeapi.NewClient(store.URL)}.work(context.Background(), make([]byte, 1<<20))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
		store.Close()
	}
}
