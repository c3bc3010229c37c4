// Package storeapi is the API between the demo's functions and their store.
package storeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	ObjectsPath = "/objects/"
	RowsPath    = "/rows"
	// MaxRows is the most that one query may ask for.
	MaxRows = 50

	// As on a long line, little is in flight at any time.
	sendBufferBytes = 32 << 10
)

// Stored is the store's answer to an upload: what arrived.
type Stored struct {
	Bytes int64  `json:"bytes"`
	CRC32 uint32 `json:"crc32"`
}

// Row is one row of the table. Its content follows from its ID.
type Row struct {
	ID    int    `json:"id"`
	Name  string `json:"name"`
	Note  string `json:"note"`
	Stock int    `json:"stock"`
	Cents int    `json:"cents"`
}

// RowOf returns the row with an ID.
func RowOf(id int) Row {
	mixed := (uint32(id) + 1) * 2654435761
	return Row{
		ID:    id,
		Name:  fmt.Sprintf("Part %08x", mixed),
		Note:  strings.Repeat("<fits & lasts> ", int(mixed>>28)%4+1),
		Stock: int(mixed>>8) % 500,
		Cents: int(mixed>>4) % 100_000,
	}
}

// dialTimeout bounds the lookup of the store's name and the connection to it. A resolver waits five seconds for an
// answer before it asks again: less would make a lost packet a failed request.
const dialTimeout = 15 * time.Second

// Client talks to the store at URL. Every upload has a connection of its own,
// because the store's bandwidth is per connection.
type Client struct {
	URL  string
	http *http.Client
}

// NewClient returns a client of the store at url, such as "http://store".
func NewClient(url string) *Client {
	return &Client{URL: url, http: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 4,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			if tcp, ok := conn.(*net.TCPConn); ok {
				if err := tcp.SetWriteBuffer(sendBufferBytes); err != nil {
					conn.Close()
					return nil, err
				}
			}
			return conn, nil
		},
	}}}
}

// Put uploads what body yields and returns what arrived at the store.
func (c *Client) Put(ctx context.Context, key string, body io.Reader) (Stored, error) {
	var stored Stored
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, c.URL+ObjectsPath+key, body)
	if err != nil {
		return stored, err
	}
	req.Close = true
	err = c.do(req, &stored)
	return stored, err
}

// Rows fetches the rows with the given IDs, MaxRows at most.
func (c *Client) Rows(ctx context.Context, ids []int) ([]Row, error) {
	var list bytes.Buffer
	for i, id := range ids {
		if i > 0 {
			list.WriteByte(',')
		}
		list.WriteString(strconv.Itoa(id))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+RowsPath+"?ids="+list.String(), nil)
	if err != nil {
		return nil, err
	}
	var rows []Row
	err = c.do(req, &rows)
	return rows, err
}

func (c *Client) do(req *http.Request, answer any) error {
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return fmt.Errorf("store: %s: %s", resp.Status, bytes.TrimSpace(said))
	}
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		return fmt.Errorf("store: decode the answer: %w", err)
	}
	return nil
}
