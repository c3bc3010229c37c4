package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	delayName = "libra-delay"
	// delayed is the most packets that can be in flight in one direction. More are lost.
	delayed   = 4096
	packetMax = 64 << 10
)

// wire is one end of a worker's slower link: a device whose other side is this process.
type wire struct {
	pid  int
	name string
	from string   // the node's address
	to   []string // the routes through it
	end  *os.File
}

// DelayLink makes packets between a worker and the other nodes take longer by delay, there and back together, until ctx is
// done. The worker's own link stays, and carries everything again however this process ends.
func (c Cluster) DelayLink(ctx context.Context, name string, delay time.Duration, begun func()) error {
	w, init, err := c.openWorker(name)
	if err != nil {
		return err
	}
	defer init.close()
	pid, err := c.firstProcess(init.pid, w)
	if err != nil {
		return err
	}
	if err := delayLink(ctx, pid, init.pid, w, delay, begun); err != nil {
		return fmt.Errorf("delay the link of %s: %w", name, err)
	}
	return nil
}

// delayLink delays packets between a worker, whose first process is pid, and the control node's network.
func delayLink(ctx context.Context, pid, control int, w member, delay time.Duration, begun func()) error {
	// The link's own routes are less specific.
	near := &wire{pid: pid, name: delayName, from: w.ip(), to: []string{"0.0.0.0/1", "128.0.0.0/1"}}
	far := &wire{pid: control, name: delayName + "-" + w.name(), from: nodeIP, to: halvesOf(w)}
	for _, end := range []*wire{near, far} {
		if err := end.open(); err != nil {
			return err
		}
		defer end.end.Close()
	}
	failed := make(chan error, 2)
	go func() { failed <- carry(far.end, near.end, delay/2) }()
	go func() { failed <- carry(near.end, far.end, delay/2) }()
	begun()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

func halvesOf(w member) []string {
	return []string{fmt.Sprintf("10.244.%d.0/25", w.number), fmt.Sprintf("10.244.%d.128/25", w.number)}
}

// open makes the device in the network of a node.
func (e *wire) open() error {
	return inNetworkOf(e.pid, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		request, err := unix.NewIfreq(e.name)
		if err == nil {
			request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("make the device %s: %w", e.name, err), unix.Close(fd))
		}
		e.end = os.NewFile(uintptr(fd), e.name)
		return e.lead()
	})
}

// lead routes traffic through the device.
func (e *wire) lead() error {
	link, err := netlink.LinkByName(e.name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, cidr := range e.to {
		_, dst, err := net.ParseCIDR(cidr)
		if err != nil {
			return err
		}
		r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Src: net.ParseIP(e.from), Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("route %s through %s: %w", cidr, e.name, err)
		}
	}
	return nil
}

// packet must arrive at the other end at the time due.
type packet struct {
	due  time.Time
	data []byte
}

// carry passes packets on, each after the delay and in order.
func carry(to, from *os.File, delay time.Duration) error {
	underway := make(chan packet, delayed)
	defer close(underway)
	go func() {
		for p := range underway {
			time.Sleep(time.Until(p.due))
			// A packet that a node does not take is lost, as on any line.
			_, _ = to.Write(p.data)
		}
	}()
	buffer := make([]byte, packetMax)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return fmt.Errorf("read what is sent through %s: %w", from.Name(), err)
		}
		select {
		case underway <- packet{time.Now().Add(delay), append([]byte(nil), buffer[:n]...)}:
		default:
		}
	}
}
