package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// function answers its first requests with errors, and keeps the sizes of the others.
type function struct {
	mu     sync.Mutex
	errors int
	sizes  []int
}

func (f *function) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.errors > 0 || err != nil {
		f.errors--
		http.Error(w, "not yet", http.StatusServiceUnavailable)
		return
	}
	f.sizes = append(f.sizes, len(body))
}

func testLoad(log io.Writer, urls ...string) *load {
	return &load{urls: urls, bytes: 100, first: 10 * time.Second, every: time.Hour, http: http.DefaultClient, log: log}
}

func TestSendsSeveralSizesToEach(t *testing.T) {
	var log bytes.Buffer
	one, other := &function{errors: 1}, &function{}
	var urls []string
	for _, f := range []*function{one, other} {
		s := httptest.NewServer(f)
		defer s.Close()
		urls = append(urls, s.URL)
	}
	if err := testLoad(&log, urls...).run(t.Context(), 3*time.Second); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*function{one, other} {
		f.mu.Lock()
		seen := slices.Compact(slices.Sorted(slices.Values(f.sizes)))
		f.mu.Unlock()
		if len(seen) != sizes || seen[0] != 100 || seen[sizes-1] != 100*sizes {
			t.Errorf("sizes are %v, want %d from 100 on", seen, sizes)
		}
	}
	for _, url := range urls {
		if !strings.Contains(log.String(), url+": ") {
			t.Errorf("it reports nothing of %s: %s", url, log.String())
		}
	}
}

func TestSaysWhoDoesNotAnswer(t *testing.T) {
	s := httptest.NewServer(&function{errors: 1000})
	defer s.Close()
	l := testLoad(io.Discard, s.URL)
	l.first = time.Millisecond
	if err := l.run(t.Context(), time.Second); err == nil || !strings.Contains(err.Error(), s.URL) {
		t.Errorf("%v, want the URL", err)
	}
}

func TestCountsFailures(t *testing.T) {
	f := &function{}
	s := httptest.NewServer(f)
	defer s.Close()
	l := testLoad(io.Discard, s.URL)
	l.pause = 10 * time.Millisecond
	go func() {
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			f.mu.Lock()
			begun := len(f.sizes) > 1
			if begun {
				f.errors = 3
			}
			f.mu.Unlock()
			if begun {
				return
			}
		}
	}()
	if err := l.run(t.Context(), 3*time.Second); err != nil {
		t.Fatal(err)
	}
	if c := l.counts[s.URL]; c.failed != 3 || c.answered == 0 {
		t.Errorf("%+v, want 3 failures", c)
	}
}

func TestTextCompressesToAboutHalf(t *testing.T) {
	const size = 100_000
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(text(size)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if n := packed.Len(); n < size*4/10 || n > size*6/10 {
		t.Errorf("%d bytes compress to %d", size, n)
	}
	if !bytes.Equal(text(size), text(size)) {
		t.Error("it differs from itself")
	}
}

func TestValidate(t *testing.T) {
	for want, l := range map[string]*load{
		"no URL":      {bytes: 1},
		"-bytes is 0": {urls: []string{"http://a"}},
		"-bytes is 9": {urls: []string{"http://a"}, bytes: 9_000_000},
	} {
		if err := l.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
