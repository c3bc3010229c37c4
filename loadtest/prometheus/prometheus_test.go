package prometheus

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOnlyAQueryThatIsWrongIsInvalid(t *testing.T) {
	for kind, invalid := range map[string]bool{"bad_data": true, "execution": true, "timeout": false, "unavailable": false} {
		t.Run(kind, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusUnprocessableEntity)
				w.Write([]byte(`{"status":"error","errorType":"` + kind + `","error":"what was wrong"}`))
			}))
			defer server.Close()
			s := &Server{URL: server.URL, client: server.Client()}
			_, err := s.Query(t.Context(), "up")
			if errors.Is(err, ErrInvalid) != invalid || !strings.Contains(err.Error(), "what was wrong") {
				t.Errorf("got %v; invalid: %t, want %t", err, errors.Is(err, ErrInvalid), invalid)
			}
		})
	}
}
