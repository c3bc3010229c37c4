package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The addresses of the box. A node's own address is on the bridge of its pods. A veth pair
// joins the control node to the machine, which reaches pods and services through it. Another
// pair joins each worker to the control node.
const (
	clusterName   = "libra-box"
	clusterDomain = "cluster.local"

	podsCIDR     = "10.244.0.0/16" // of all nodes
	podCIDR      = "10.244.0.0/24" // of the control node
	nodeIP       = "10.244.0.1"
	serviceCIDR  = "10.96.0.0/16"
	apiServiceIP = "10.96.0.1"
	linkCIDR     = "10.245.0.0/30"
	hostLinkIP   = "10.245.0.1"
	boxLinkIP    = "10.245.0.2"

	bridgeName   = "libra0"
	hostLinkName = "libra-host"
	boxLinkName  = "libra-box"

	apiServerURL = "https://" + nodeIP + ":6443"
)

// route is the part of one of the machine's routes that the preflight needs.
type route struct {
	dst    netip.Prefix
	device string
}

// machineRoutes lists the IPv4 routes of every table, except default routes. They include
// the addresses of interfaces, in the table "local".
func machineRoutes() ([]route, error) {
	list, err := netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var routes []route
	for _, r := range list {
		if r.Dst == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if !ok || bits == 0 {
			continue
		}
		device := "none"
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			device = link.Attrs().Name
		}
		routes = append(routes, route{dst: netip.PrefixFrom(addr, bits), device: device})
	}
	return routes, nil
}

// boxCIDRs returns the addresses by which the machine reaches a box of these nodes.
func boxCIDRs(members []member) []string {
	var cidrs []string
	for _, m := range members {
		cidrs = append(cidrs, m.podCIDR())
	}
	return append(cidrs, serviceCIDR)
}

// connectMachine makes the veth pair, with one end in the network namespace of
// pid, and the machine's routes to the box.
func connectMachine(pid int, members []member) error {
	link, err := join(hostLinkName, pid, hostLinkIP, linkCIDR)
	if err != nil {
		return err
	}
	for _, cidr := range boxCIDRs(members) {
		if err := addRoute(link, cidr, boxLinkIP, ""); err != nil {
			return err
		}
	}
	return nil
}

// join makes a veth pair, with one end, named boxLinkName, in the network namespace of pid.
func join(name string, pid int, ip, cidr string) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: boxLinkName, PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("make the veth pair %s: %w", name, err)
	}
	return setUp(name, ip, cidr)
}

// A worker's link. Only its two ends know its addresses.
func (m member) linkName() string      { return "libra-" + m.name() }
func (m member) linkCIDR() string      { return fmt.Sprintf("10.245.%d.0/30", m.number) }
func (m member) controlLinkIP() string { return fmt.Sprintf("10.245.%d.1", m.number) }
func (m member) linkIP() string        { return fmt.Sprintf("10.245.%d.2", m.number) }

// connectWorker joins a worker, whose first process is pid, to the control node. It must run
// on the control node.
func connectWorker(pid int, w member) error {
	// An earlier worker's link goes with its network namespace, perhaps not at once.
	if old, err := netlink.LinkByName(w.linkName()); err == nil {
		if err := netlink.LinkDel(old); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove the link %s: %w", w.linkName(), err)
		}
	}
	link, err := join(w.linkName(), pid, w.controlLinkIP(), w.linkCIDR())
	if err != nil {
		return err
	}
	return addRoute(link, w.podCIDR(), w.linkIP(), nodeIP)
}

// disconnectMachine removes the veth pair, and with it the routes.
func disconnectMachine() (removed bool, err error) {
	link, err := netlink.LinkByName(hostLinkName)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return false, nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	// The link goes by itself when the box's namespace does, perhaps just now.
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return false, fmt.Errorf("remove the link %s: %w", hostLinkName, err)
	}
	return true, nil
}

// setUpNetwork prepares a node's own network namespace, from inside it.
func setUpNetwork(m member) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridgeName
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("make the bridge %s: %w", bridgeName, err)
	}
	if _, err := setUp(bridgeName, m.ip(), m.podCIDR()); err != nil {
		return err
	}
	if err := setUpUplink(m); err != nil {
		return err
	}
	for path, value := range map[string]string{
		"/proc/sys/net/ipv4/ip_forward": "1",
		// For two pods on one bridge: the response to a request to a service's address must
		// pass the firewall that translated the request.
		bridgeSysctl: "1",
	} {
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set %s: %w", path, err)
		}
	}
	return nil
}

// setUpUplink brings up the link that joins a node to the rest, and the route through it.
func setUpUplink(m member) error {
	ip, cidr, gateway, from := boxLinkIP, linkCIDR, hostLinkIP, ""
	if m.isWorker() {
		ip, cidr, gateway, from = m.linkIP(), m.linkCIDR(), m.controlLinkIP(), m.ip()
	}
	link, err := setUp(boxLinkName, ip, cidr)
	if err != nil {
		return err
	}
	return addRoute(link, "0.0.0.0/0", gateway, from)
}

// setUp gives the link an address within cidr and brings it up.
func setUp(name, ip, cidr string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		return nil, err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: network.Mask}}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return nil, fmt.Errorf("give %s the address %s: %w", name, ip, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("bring %s up: %w", name, err)
	}
	return link, nil
}

// addRoute adds a route. Its packets come from the address from, unless that is empty.
func addRoute(link netlink.Link, cidr, gateway, from string) error {
	_, dst, err := net.ParseCIDR(cidr)
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: net.ParseIP(gateway), Src: net.ParseIP(from)}
	if err := netlink.RouteAdd(r); err != nil {
		return fmt.Errorf("route %s via %s: %w", cidr, gateway, err)
	}
	return nil
}
