// Command dynamichtml renders a page from a template and rows that it fetches
// from the store (DH in LIBRA's Table 1). It waits for the rows far more than
// it computes.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"html/template"
	"io"
	"net"
	"os"
	"slices"

	"libra.dev/libra/loadtest/functions/server"
	"libra.dev/libra/loadtest/functions/storeapi"
)

var (
	header = template.Must(template.New("header").Parse(`<!doctype html><title>{{.}}</title><h1>{{.}}</h1><table>`))
	rows   = template.Must(template.New("rows").Parse(`{{range .}}
<tr id="part-{{.ID}}"><th>{{.Name}}<td>{{.Note}}<td>{{.Stock}}<td>{{.Cents}}{{end}}`))
	footer = template.Must(template.New("footer").Parse(`</table><p>{{.}} parts</p>`))
)

// order is the body of a request: which rows the page shows.
type order struct {
	Title string `json:"title"`
	IDs   []int  `json:"ids"`
}

type result struct {
	Rows  int    `json:"rows"`
	IDSum int    `json:"id_sum"`
	Bytes int    `json:"html_bytes"`
	CRC32 uint32 `json:"html_crc32"`
}

type renderer struct{ store *storeapi.Client }

func (r renderer) work(ctx context.Context, body []byte) (any, error) {
	var o order
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, server.BadRequestError{Err: fmt.Errorf("the body does not describe a page: %w", err)}
	}
	page := &page{}
	if err := header.Execute(page, o.Title); err != nil {
		return nil, err
	}
	var did result
	for ids := range slices.Chunk(o.IDs, storeapi.MaxRows) {
		fetched, err := r.store.Rows(ctx, ids)
		if err != nil {
			return nil, fmt.Errorf("fetch %d rows from %d: %w", len(ids), ids[0], err)
		}
		if err := rows.Execute(page, fetched); err != nil {
			return nil, err
		}
		for _, row := range fetched {
			did.Rows++
			did.IDSum += row.ID
		}
	}
	if err := footer.Execute(page, did.Rows); err != nil {
		return nil, err
	}
	did.Bytes, did.CRC32 = page.bytes, page.crc32
	return did, nil
}

// page counts and checksums the HTML as it is rendered.
type page struct {
	bytes int
	crc32 uint32
}

func (p *page) Write(b []byte) (int, error) {
	p.bytes += len(b)
	p.crc32 = crc32.Update(p.crc32, crc32.IEEETable, b)
	return len(b), nil
}

var _ io.Writer = (*page)(nil)

func main() {
	r := renderer{store: storeapi.NewClient(os.Getenv("STORE_URL"))}
	server.Main(server.Handler(r.work), net.ListenConfig{})
}
