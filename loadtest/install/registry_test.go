//go:build install

package install

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// serveRegistry returns the address of a registry on loopback, where container runtimes accept it without TLS: on this
// machine's loopback, and on that of the box's node, which has a network of its own.
func serveRegistry(t *testing.T) string {
	t.Helper()
	address, stop := startRegistry(t, t.TempDir())
	t.Cleanup(stop)
	return address
}

// startRegistry starts such a registry, which keeps its blobs in a folder.
func startRegistry(t *testing.T, blobs string) (address string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	onNode, err := listenOnNode(t, listener.Addr().String())
	if err != nil {
		t.Fatal("listening on the box's node: ", err)
	}
	server := &http.Server{
		Handler:           registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs))),
		ReadHeaderTimeout: 10 * time.Second,
	}
	go server.Serve(onNode)                                    //nolint:errcheck // closed at the end
	go server.Serve(listener)                                  //nolint:errcheck // closed at the end
	return listener.Addr().String(), func() { server.Close() } //nolint:errcheck // the test is over
}

// listenOnNode makes a socket in the network of the node's container runtime. A socket stays in the network that it was
// made in.
func listenOnNode(t *testing.T, address string) (listener net.Listener, err error) {
	t.Helper()
	status, err := exec.CommandContext(t.Context(), *boxPath, "status").Output()
	if err != nil {
		return nil, fmt.Errorf("box status: %w", err)
	}
	runtimes := regexp.MustCompile(`(?m)^containerd +([0-9]+) `).FindSubmatch(status)
	if runtimes == nil {
		return nil, fmt.Errorf("box status names no containerd:\n%s", status)
	}
	network, err := os.Open(fmt.Sprintf("/proc/%s/ns/net", runtimes[1]))
	if err != nil {
		return nil, err
	}
	defer network.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err = unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err == nil {
			listener, err = net.Listen("tcp", address)
		}
	}()
	<-done
	return listener, err
}

// pushTar pushes the only image of a tar, and returns its reference by digest.
func pushTar(t *testing.T, path, repository string) string {
	t.Helper()
	image, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	to, err := name.NewTag(repository+":test", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, image, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return repository + "@" + digest.String()
}
