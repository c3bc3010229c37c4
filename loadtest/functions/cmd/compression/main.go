// Command compression compresses the body (CP in LIBRA's Table 1) as pigz does,
// in independent blocks, on as many workers as the size is worth. It tries every
// level, to make each block as small as it can. A large body keeps every core
// busy that its container may use.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"hash/crc32"
	"net"

	"libra.dev/libra/loadtest/functions/parallel"
	"libra.dev/libra/loadtest/functions/server"
)

const (
	blockBytes = 128 << 10
	// A worker is worth starting for this much of the body.
	bytesPerWorker = 512 << 10
)

type result struct {
	Bytes      int    `json:"bytes"`
	CRC32      uint32 `json:"crc32"`
	Compressed int    `json:"compressed_bytes"`
	Blocks     int    `json:"blocks"`
	Workers    int    `json:"workers"`
}

func work(ctx context.Context, body []byte) (any, error) {
	workers := parallel.Workers(len(body), bytesPerWorker)
	blocks, err := compress(ctx, body, workers)
	if err != nil {
		return nil, err
	}
	r := result{Bytes: len(body), CRC32: crc32.ChecksumIEEE(body), Blocks: len(blocks), Workers: workers}
	for _, b := range blocks {
		r.Compressed += len(b)
	}
	return r, nil
}

// compress returns the gzip members whose concatenation unpacks to body.
func compress(ctx context.Context, body []byte, workers int) ([][]byte, error) {
	members := make([][]byte, (len(body)+blockBytes-1)/blockBytes)
	err := parallel.Do(ctx, workers, len(members), func(i int) (err error) {
		members[i], err = smallest(ctx, body[i*blockBytes:min((i+1)*blockBytes, len(body))])
		return err
	})
	return members, err
}

// smallest tries every level and returns the smallest gzip member.
func smallest(ctx context.Context, block []byte) ([]byte, error) {
	var best []byte
	for level := gzip.BestSpeed; level <= gzip.BestCompression; level++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var out bytes.Buffer
		z, err := gzip.NewWriterLevel(&out, level)
		if err != nil {
			return nil, err
		}
		if _, err := z.Write(block); err != nil {
			return nil, err
		}
		if err := z.Close(); err != nil {
			return nil, err
		}
		if best == nil || out.Len() < len(best) {
			best = out.Bytes()
		}
	}
	return best, nil
}

func main() { server.Main(server.Handler(work), net.ListenConfig{}) }
