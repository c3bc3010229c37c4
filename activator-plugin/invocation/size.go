package invocation

import (
	"fmt"
	"io"
	"net/http"
	"strconv"

	"libra.dev/libra/pkg/api"
)

// maxSize bounds what a client may claim. No request is a pebibyte.
const maxSize int64 = 1 << 50

// Where a size, or a mistake in one, comes from: the attribute "field".
const (
	fieldAnnotation    = "annotation"
	fieldContentLength = "content_length"
	fieldHeader        = api.InputSizeHeader
	fieldQuery         = api.InputSizeQuery
	fieldJSON          = api.InputSizeJSON
)

// sizeError says why a size was refused. The invocation's size is then unknown.
type sizeError struct {
	field  string
	reason string
}

func (e *sizeError) Error() string { return e.reason }

// sizeOf returns a request's input size in bytes, or api.UnknownSize, and the body to read in place of the request's.
// annotation is the revision's api.InputSizeAnnotation, "" when it has none. Bodies are read ahead within the budget.
func sizeOf(r *http.Request, annotation string, ahead *budget) (size int64, body io.ReadCloser, refused *sizeError) {
	field, name, err := "", "", error(nil)
	if annotation != "" {
		field, name, err = api.ParseInputSize(annotation)
	}
	body = r.Body
	switch {
	case err != nil:
		size, refused = api.UnknownSize, &sizeError{field: fieldAnnotation, reason: err.Error()}
	case field == api.InputSizeHeader:
		size, refused = declared(fieldHeader, name, r.Header.Get(name))
	case field == api.InputSizeQuery:
		size, refused = declared(fieldQuery, name, r.URL.Query().Get(name))
	case field == api.InputSizeJSON:
		size, body, refused = sizeInJSON(r, name, ahead)
	default:
		size, refused = contentLength(r)
	}
	return size, body, refused
}

func contentLength(r *http.Request) (int64, *sizeError) {
	if r.ContentLength > maxSize {
		return api.UnknownSize, &sizeError{
			field:  fieldContentLength,
			reason: fmt.Sprintf("Content-Length is %d, want at most %d", r.ContentLength, maxSize),
		}
	}
	// The server leaves -1, which is UnknownSize, when the client did not declare a length.
	return r.ContentLength, nil
}

func declared(field, name, value string) (int64, *sizeError) {
	if value == "" {
		return api.UnknownSize, nil
	}
	size, err := strconv.ParseInt(value, 10, 64)
	if err != nil || size < 0 || size > maxSize {
		// Not the value, which the log and an Event would show: it is the client's, and may be a secret.
		return api.UnknownSize, &sizeError{
			field:  field,
			reason: fmt.Sprintf("%s %s is not a number of bytes from 0 to %d", field, name, maxSize),
		}
	}
	return size, nil
}
