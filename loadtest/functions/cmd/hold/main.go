// Command hold uses as much memory as the body says, and for how long ("150 4s": 150 MiB). It
// takes the memory evenly in the first half of that time and keeps all of it for the second,
// computing on one thread. With too little CPU it takes longer. It does nothing for an empty
// body. Tests of limits need it.
package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/functions/server"
)

const (
	mebibyte = 1 << 20
	mostMiB  = 4096
	longest  = time.Minute
)

type result struct {
	MiB int `json:"mib"`
}

func work(ctx context.Context, body []byte) (any, error) {
	if len(body) == 0 {
		return nil, nil
	}
	var mib int
	var text string
	if _, err := fmt.Sscanf(string(body), "%d %s", &mib, &text); err != nil {
		return nil, server.BadRequestError{Err: fmt.Errorf("the body is %.40q; it must be a number of MiB and a duration, such as \"150 4s\": %w", body, err)}
	}
	last, err := time.ParseDuration(text)
	if err != nil || mib < 1 || mib > mostMiB || last <= 0 || last > longest {
		return nil, server.BadRequestError{Err: fmt.Errorf("the body is %.40q; it must be 1 to %d MiB and a duration above 0, at most %v", body, mostMiB, longest)}
	}
	// Not on Go's heap, which would keep the memory for the next request.
	memory, err := unix.Mmap(-1, 0, mib*mebibyte, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("take %d MiB: %w", mib, err)
	}
	defer unix.Munmap(memory) //nolint:errcheck // it is what was mapped
	start, used := time.Now(), 0
	for passed := time.Duration(0); passed < last || used < mib; passed = time.Since(start) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		grown := min(mib, int(2*int64(mib)*passed.Milliseconds()/max(1, last.Milliseconds())))
		for ; used < grown; used++ {
			touch(memory[used*mebibyte : (used+1)*mebibyte])
		}
		if used > 0 { // so that none of it grows cold
			touch(memory[:used*mebibyte])
		}
	}
	return result{MiB: used}, nil
}

func touch(memory []byte) {
	for i := 0; i < len(memory); i += unix.Getpagesize() {
		memory[i]++
	}
}

func main() { server.Main(server.Handler(work), net.ListenConfig{}) }
