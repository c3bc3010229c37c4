package invocation

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"libra.dev/libra/pkg/api"
)

func TestSizeOf(t *testing.T) {
	for _, tc := range []struct {
		name       string
		annotation string
		length     int64
		header     string
		query      string
		want       int64
		wantField  string
		wantErr    string
	}{
		{name: "content length", length: 1234, want: 1234},
		{name: "no body", length: 0, want: 0},
		{name: "chunked", length: -1, want: api.UnknownSize},
		{name: "absurd content length", length: maxSize + 1, want: api.UnknownSize,
			wantField: fieldContentLength, wantErr: "Content-Length is 1125899906842625, want at most 1125899906842624"},
		{name: "header", annotation: "header:X-Size", length: 5, header: "77", want: 77},
		{name: "header absent", annotation: "header:x-size", length: 5, want: api.UnknownSize},
		{name: "header negative", annotation: "header:X-Size", header: "-2", want: api.UnknownSize,
			wantField: fieldHeader, wantErr: `header X-Size is not a number of bytes from 0 to`},
		{name: "header no number", annotation: "header:X-Size", header: "big", want: api.UnknownSize,
			wantField: fieldHeader, wantErr: `header X-Size is not a number`},
		{name: "header that is long", annotation: "header:X-Size", header: strings.Repeat("9", 4096), want: api.UnknownSize,
			wantField: fieldHeader, wantErr: `header X-Size is not a number`},
		{name: "query", annotation: "query:n", query: "n=88&m=1", want: 88},
		{name: "query absent", annotation: "query:n", query: "m=1", want: api.UnknownSize},
		{name: "query absurd", annotation: "query:n", query: "n=1125899906842625", want: api.UnknownSize,
			wantField: fieldQuery, wantErr: `query n is not a number`},
		{name: "annotation without a name", annotation: "header:", want: api.UnknownSize,
			wantField: fieldAnnotation, wantErr: `annotation libra.dev/input-size is "header:", want header:NAME, query:NAME or json:/POINTER`},
		{name: "annotation with no header's name", annotation: "header:a b", want: api.UnknownSize,
			wantField: fieldAnnotation, wantErr: `is "header:a b", want`},
		{name: "annotation of another kind", annotation: "cookie:size", want: api.UnknownSize,
			wantField: fieldAnnotation, wantErr: `is "cookie:size", want`},
		{name: "annotation without a colon", annotation: "query", want: api.UnknownSize,
			wantField: fieldAnnotation, wantErr: `is "query", want`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "http://example.com/?"+tc.query, nil)
			r.ContentLength = tc.length
			if tc.header != "" {
				r.Header.Set("X-Size", tc.header)
			}
			got, body, err := sizeOf(r, tc.annotation, new(budget))
			if body != r.Body {
				t.Error("the body is another")
			}
			if got != tc.want {
				t.Errorf("sizeOf() = %d, want %d", got, tc.want)
			}
			switch {
			case tc.wantErr == "" && err != nil:
				t.Errorf("sizeOf() = %v, want no error", err)
			case tc.wantErr != "" && (err == nil || err.field != tc.wantField || !strings.Contains(err.Error(), tc.wantErr)):
				t.Errorf("sizeOf() = %v, want an error of field %s with %q", err, tc.wantField, tc.wantErr)
			case tc.header != "" && err != nil && strings.Contains(err.Error(), tc.header):
				t.Errorf("sizeOf() = %v, which shows the client's value", err)
			}
		})
	}
}
