package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHandler(t *testing.T) {
	echo := func(_ context.Context, body []byte) (any, error) {
		switch string(body) {
		case "broken":
			return nil, errors.New("the disk is full")
		case "bad":
			return nil, BadRequestError{Err: errors.New("edges is -1")}
		}
		return map[string]int{"bytes": len(body)}, nil
	}
	for _, c := range []struct {
		name       string
		body       io.Reader
		wantStatus int
		wantBody   string
	}{
		{"says what it did", strings.NewReader("hello"), http.StatusOK, `{"request_id":"id-1","did":{"bytes":5}}`},
		{"takes no body", http.NoBody, http.StatusOK, `"bytes":0`},
		{"tells a bad request", strings.NewReader("bad"), http.StatusBadRequest, "edges is -1"},
		{"tells its own failure", strings.NewReader("broken"), http.StatusInternalServerError, "the disk is full"},
		{"refuses too much", io.LimitReader(zeros{}, maxBodyBytes+1), http.StatusRequestEntityTooLarge, "16777216"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/", c.body)
			r.Header.Set("X-Request-Id", "id-1")
			w := httptest.NewRecorder()
			Handler(echo).ServeHTTP(w, r)
			if w.Code != c.wantStatus || !strings.Contains(w.Body.String(), c.wantBody) {
				t.Errorf("got %d %s, want %d with %q", w.Code, w.Body, c.wantStatus, c.wantBody)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
