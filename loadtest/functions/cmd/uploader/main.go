// Command uploader compresses the body lightly and uploads it to the store (UL
// in LIBRA's Table 1). It waits for the line far more than it computes.
package main

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"

	"libra.dev/libra/loadtest/functions/server"
	"libra.dev/libra/loadtest/functions/storeapi"
)

const pieceBytes = 64 << 10

type result struct {
	Bytes  int    `json:"bytes"`
	CRC32  uint32 `json:"crc32"`
	SHA256 string `json:"sha256"`
	Stored int64  `json:"stored_bytes"`
}

type uploader struct{ store *storeapi.Client }

func (u uploader) work(ctx context.Context, body []byte) (any, error) {
	sum := sha256.Sum256(body)
	key := hex.EncodeToString(sum[:])
	line, sent := io.Pipe()
	wire := crc32.NewIEEE()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		sent.CloseWithError(pack(io.MultiWriter(sent, wire), body))
	}()
	stored, err := u.store.Put(ctx, key, line)
	// A failed store may not have read everything, and pack must not wait for it.
	line.Close()
	<-packed
	if err != nil {
		return nil, fmt.Errorf("upload %s: %w", key, err)
	}
	if stored.CRC32 != wire.Sum32() {
		return nil, fmt.Errorf("upload %s: the store received data with the checksum %08x, but %08x was sent", key, stored.CRC32, wire.Sum32())
	}
	return result{Bytes: len(body), CRC32: crc32.ChecksumIEEE(body), SHA256: key, Stored: stored.Bytes}, nil
}

// pack writes the body piece by piece, so that compression keeps pace with the line.
func pack(w io.Writer, body []byte) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	for start := 0; start < len(body); start += pieceBytes {
		if _, err := z.Write(body[start:min(start+pieceBytes, len(body))]); err != nil {
			return err
		}
	}
	return z.Close()
}

func main() {
	u := uploader{store: storeapi.NewClient(os.Getenv("STORE_URL"))}
	server.Main(server.Handler(u.work), net.ListenConfig{})
}
