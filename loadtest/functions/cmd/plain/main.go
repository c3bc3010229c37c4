// Command plain answers with the checksum of the body. It is a service whose
// owner did not opt in to Libra, and shows that nothing changes for it.
package main

import (
	"context"
	"hash/crc32"
	"net"

	"libra.dev/libra/loadtest/functions/server"
)

type result struct {
	Bytes int    `json:"bytes"`
	CRC32 uint32 `json:"crc32"`
}

func work(_ context.Context, body []byte) (any, error) {
	return result{Bytes: len(body), CRC32: crc32.ChecksumIEEE(body)}, nil
}

func main() { server.Main(server.Handler(work), net.ListenConfig{}) }
