package invocation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"libra.dev/libra/pkg/api"
)

// A body that names the request's size is read ahead: maxPeeked of it at most, and for peekFor at most. The function has
// nothing to work on before such a body is there, either.
const (
	maxPeeked   = 64 << 10
	peekFor     = 100 * time.Millisecond
	firstBuffer = 4 << 10
	// maxAhead bounds what all such bodies hold together: thousands of requests may wait, each with its body.
	maxAhead = 32 << 20
)

// budget counts the bytes that are reserved for bodies that are read ahead.
type budget struct{ atomic.Int64 }

// reserve reserves room for a body of n bytes, and returns false if there is none.
func (b *budget) reserve(n int64) bool {
	if b.Add(n) > maxAhead {
		b.Add(-n)
		return false
	}
	return true
}

// sizeInJSON returns the size that a JSON body names at a pointer, and the body to read in place of the request's. The
// size is unknown if the body is longer than maxPeeked, of undeclared length, followed by trailers, part of an upgrade,
// held back by its client, beyond the budget, or not there within peekFor, or if it has nothing at the pointer.
func sizeInJSON(r *http.Request, pointer string, ahead *budget) (int64, io.ReadCloser, *sizeError) {
	// Reading a body to its end fills r.Trailer, which others look at while the body is read ahead. An upgraded
	// connection is read by whoever upgraded it. And a read asks for a body that its client holds back until the
	// function accepts it.
	if r.ContentLength <= 0 || r.ContentLength > maxPeeked || len(r.Trailer) > 0 || api.AsksForUpgrade(r.Header) || r.Header.Get("Expect") != "" {
		return api.UnknownSize, r.Body, nil
	}
	refused := func(format string, args ...any) *sizeError {
		return &sizeError{field: fieldJSON, reason: fmt.Sprintf("json %s: ", pointer) + fmt.Sprintf(format, args...)}
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return api.UnknownSize, r.Body, refused("the body has a Content-Encoding, want none")
	}
	if !ahead.reserve(r.ContentLength) {
		return api.UnknownSize, r.Body, nil
	}
	body := readAhead(r.Body, r.ContentLength, ahead)
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

// unescape turns a part of a pointer into a key (RFC 6901, section 4).
var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// valueAt returns the number or string at a pointer (RFC 6901) into a JSON document, or "" if there is nothing. It reads
// no further than that value, and the first of equal keys counts.
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
		return "", fmt.Errorf("%s is not a number of bytes from 0 to %d", kindOf(value), maxSize)
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

// enter takes the next object or array and moves the decoder to the value at a key or index. found reports whether there
// is one.
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

// readAheadBody is a body that is read before anybody asks for it. Its reader gets all of it, as it arrives.
type readAheadBody struct {
	of    io.Reader
	done  chan struct{} // closed when run has ended
	ahead *budget

	mu       sync.Mutex
	more     sync.Cond
	by       readBy
	reserved int64
	buffer   []byte
	arrived  []byte // in the buffer
	err      error  // that comes after arrived
	given    int
	closed   bool
}

// readBy says who reads the body from the server.
type readBy int

const (
	byRun    readBy = iota
	byLast          // run, once more: it is waiting for what comes next
	byReader        // the body's reader, after what has arrived
)

// readAhead starts to read a body whose length has been reserved.
func readAhead(of io.Reader, length int64, ahead *budget) *readAheadBody {
	most := int(length) + 1 // to see its end
	// The buffer grows with what arrives: declaring a length costs a client nothing.
	b := &readAheadBody{of: of, done: make(chan struct{}), ahead: ahead, reserved: length, buffer: make([]byte, min(most, firstBuffer))}
	b.more.L = &b.mu
	go b.run(most)
	return b
}

// run reads the body into the buffer, where nobody looks beyond what has arrived. It ends when the server closes the
// body, at the latest.
func (b *readAheadBody) run(most int) {
	defer close(b.done)
	for n, more := 0, true; more; {
		read, err := b.of.Read(b.buffer[n:]) // nobody else changes the buffer meanwhile
		n += read
		more = b.arrive(n, most, err)
	}
}

// arrive takes in that n bytes have arrived in the buffer, and says whether run is to read more.
func (b *readAheadBody) arrive(n, most int, err error) (more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arrived, b.err = b.buffer[:n], err
	switch {
	case err != nil || b.by == byLast:
		b.by = byReader
	case n == len(b.buffer):
		b.buffer = append(b.buffer, make([]byte, max(1, min(n, most-n)))...)
		b.arrived = b.buffer[:n]
	}
	b.release()
	more = b.by != byReader
	b.more.Broadcast()
	return more
}

// release drops the body and gives back what was reserved for it, once, when nobody holds any of it any more. run holds
// it while it reads, even after Close. The caller must hold mu.
func (b *readAheadBody) release() {
	if b.by != byReader || b.given < len(b.arrived) && !b.closed {
		return
	}
	b.ahead.Add(-b.reserved)
	b.buffer, b.arrived, b.given, b.reserved = nil, nil, 0, 0
}

// peek returns the whole body, if that arrives in time. If not, the rest is no longer read ahead, so that clients which
// stall do not use up the budget: what was reserved beyond the buffer is given back.
func (b *readAheadBody) peek(ctx context.Context, within time.Duration) (document []byte, all bool) {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case <-b.done:
	case <-timeout.C:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.by == byRun {
		b.by = byLast
		unused := max(0, b.reserved-int64(len(b.buffer)))
		b.ahead.Add(-unused)
		b.reserved -= unused
	}
	return b.arrived, b.err == io.EOF
}

// Read blocks until there is something to return.
func (b *readAheadBody) Read(p []byte) (n int, err error) {
	if n, err, done := b.take(p); done {
		return n, err
	}
	return b.of.Read(p)
}

// take reads what has arrived. It is not done if the rest is the reader's to read.
func (b *readAheadBody) take(p []byte) (n int, err error, done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.given == len(b.arrived) && b.by != byReader && !b.closed {
		b.more.Wait()
	}
	if b.closed {
		return 0, http.ErrBodyReadAfterClose, true
	}
	if b.given == len(b.arrived) && b.err == nil {
		return 0, nil, false
	}
	n = copy(p, b.arrived[b.given:])
	b.given += n
	if b.given == len(b.arrived) {
		err = b.err
	}
	b.release() // the request may go on for long
	return n, err, true
}

// Close leaves the rest to the server, which closes the body after the response: waiting for it here would hold up the
// proxy.
func (b *readAheadBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.release()
	b.more.Broadcast()
	return nil
}
