package invocation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"libra.dev/libra/pkg/api"
)

// A body in which the request's size is named is read ahead: so much of it at most, and for so long at most. A function
// has nothing to work on before such a body is there either.
const (
	maxPeeked   = 64 << 10
	peekFor     = 100 * time.Millisecond
	firstBuffer = 4 << 10
)

// sizeInJSON is the size that a JSON body names at a pointer, and the body that is to be read in place of the request's.
// It is unknown where the body is longer than maxPeeked, of a length that was not declared, followed by trailers, of an
// upgrade, held back by its client, or not there within peekFor, and where it has nothing at the pointer.
func sizeInJSON(r *http.Request, pointer string) (int64, io.ReadCloser, *sizeError) {
	// Who reads a body to its end puts what follows into r.Trailer, at which others look while it is read ahead. And
	// who upgrades a connection reads from it. To read a body is to ask for one that its client holds back until the
	// function accepts it.
	if r.ContentLength <= 0 || r.ContentLength > maxPeeked || len(r.Trailer) > 0 || r.Header.Get("Upgrade") != "" || r.Header.Get("Expect") != "" {
		return api.UnknownSize, r.Body, nil
	}
	refused := func(format string, args ...any) *sizeError {
		return &sizeError{field: fieldJSON, reason: fmt.Sprintf("json %s: ", pointer) + fmt.Sprintf(format, args...)}
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return api.UnknownSize, r.Body, refused("the body has the Content-Encoding %.64q, want none", encoding)
	}
	body := readAhead(r.Body, r.ContentLength)
	document, all := body.peek(r.Context(), peekFor)
	if !all {
		return api.UnknownSize, body, nil
	}
	value, err := valueAt(document, pointer)
	if err != nil {
		return api.UnknownSize, body, refused("%v", err)
	}
	size, sizeErr := declared(fieldJSON, pointer, value)
	return size, body, sizeErr
}

// unescape makes a key of a part of a pointer (RFC 6901, section 4).
var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// valueAt is the number, or the text, at a pointer (RFC 6901) into a JSON document; empty where there is nothing. Only
// what comes before it is read, and of equal keys the first counts.
func valueAt(document []byte, pointer string) (string, error) {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	for key := range strings.SplitSeq(pointer[1:], "/") {
		found, err := enter(d, unescape.Replace(key))
		if err != nil {
			return "", fmt.Errorf("the body is not JSON: %w", err)
		}
		if !found {
			return "", nil
		}
	}
	switch token, err := d.Token(); value := token.(type) {
	case string:
		return value, nil
	case json.Number:
		// 1e3 and 1000.0 are whole numbers, too.
		n, err := value.Float64()
		if err != nil {
			return value.String(), nil
		}
		return strconv.FormatFloat(n, 'f', -1, 64), nil
	default:
		if err != nil {
			return "", fmt.Errorf("the body is not JSON: %w", err)
		}
		return "", fmt.Errorf("it is %s, want a number of bytes from 0 to %d", kindOf(value), maxSize)
	}
}

func kindOf(token json.Token) string {
	switch token {
	case json.Delim('{'):
		return "an object"
	case json.Delim('['):
		return "an array"
	case nil:
		return "null"
	default:
		return fmt.Sprint(token) // true or false
	}
}

// enter has the decoder be at the value of a key of the object, or of an index of the array, that is next, and says
// whether there is one.
func enter(d *json.Decoder, key string) (found bool, err error) {
	token, err := d.Token()
	if err != nil {
		return false, err
	}
	var skipped json.RawMessage
	for i := 0; token == json.Delim('{') || token == json.Delim('['); i++ {
		if !d.More() {
			return false, nil
		}
		here := json.Token(strconv.Itoa(i))
		if token == json.Delim('{') {
			if here, err = d.Token(); err != nil {
				return false, err
			}
		}
		if here == key {
			return true, nil
		}
		if err := d.Decode(&skipped); err != nil {
			return false, err
		}
	}
	return false, nil
}

// readAheadBody is a body that is read before anybody asks for it, and is given in full, and as it arrives, to who does.
type readAheadBody struct {
	of   io.Reader
	done chan struct{} // closed when no more arrives

	mu      sync.Mutex
	more    sync.Cond
	arrived []byte
	err     error // of what comes after it
	given   int
	closed  bool
}

// errLongerThanDeclared is never seen of a body of Go's servers.
var errLongerThanDeclared = errors.New("the body is longer than its Content-Length")

// readAhead reads a body of this length.
func readAhead(of io.Reader, length int64) *readAheadBody {
	b := &readAheadBody{of: of, done: make(chan struct{})}
	b.more.L = &b.mu
	go b.run(int(length))
	return b
}

// run reads it into a buffer, of which nobody looks at what has not arrived. It ends when the server closes the
// body, at the latest.
func (b *readAheadBody) run(length int) {
	defer close(b.done)
	most := length + 1 // to see its end
	// The buffer grows with what arrives: to declare a length costs a client nothing.
	buffer := make([]byte, min(most, firstBuffer))
	for n, err := 0, error(nil); err == nil; {
		if n == len(buffer) {
			buffer = append(buffer, make([]byte, min(len(buffer), most-len(buffer)))...)
		}
		var read int
		read, err = b.of.Read(buffer[n:])
		if n += read; n == most {
			n, err = length, errLongerThanDeclared
		}
		b.mu.Lock()
		b.arrived, b.err = buffer[:n], err
		b.more.Broadcast()
		b.mu.Unlock()
	}
}

// peek is all of the body, if that arrives in time.
func (b *readAheadBody) peek(ctx context.Context, within time.Duration) (document []byte, all bool) {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case <-b.done:
	case <-timeout.C:
		return nil, false
	case <-ctx.Done():
		return nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.arrived, b.err == io.EOF
}

// Read waits for what has not arrived.
func (b *readAheadBody) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.given == len(b.arrived) && b.err == nil && !b.closed {
		b.more.Wait()
	}
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	n = copy(p, b.arrived[b.given:])
	b.given += n
	if b.given == len(b.arrived) && b.err != nil {
		b.arrived, b.given, err = nil, 0, b.err // the request may go on for long
	}
	return n, err
}

// Close leaves the rest to the server, which closes the body after the response: to wait for it here would hold up who
// proxies it.
func (b *readAheadBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.more.Broadcast()
	return nil
}
