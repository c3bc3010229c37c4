package cluster

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// probeName is the subcommand that probes the kernel's features.
const probeName = "probe"

// Probe tries what the node needs of the kernel and writes one line for each
// lack. It must run in mount and network namespaces of its own.
func Probe(w io.Writer) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("`box %s` is only for `box build` and `box up`, which run it in namespaces of its own", probeName)
	}
	for _, feature := range []struct {
		name string
		try  func() error
	}{
		{"overlay file systems (overlayfs)", tryOverlay},
		{"network bridges (bridge)", func() error { return tryLink(&netlink.Bridge{LinkAttrs: named("probe0")}) }},
		{"virtual Ethernet pairs (veth)", func() error {
			return tryLink(&netlink.Veth{LinkAttrs: named("probe1"), PeerName: "probe2"})
		}},
		{"firewalling of bridged packets (br_netfilter)", func() error {
			return os.WriteFile(bridgeSysctl, []byte("1"), 0o644)
		}},
		{"nftables with address translation (nf_tables, nft_nat)", tryNFTables},
	} {
		if err := feature.try(); err != nil {
			fmt.Fprintf(w, "the kernel lacks %s: %v\n", feature.name, err)
		}
	}
	return nil
}

func named(name string) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return attrs
}

func tryLink(link netlink.Link) error { return netlink.LinkAdd(link) }

func tryOverlay() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	const dir = "/tmp"
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, sub := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	return unix.Mount("overlay", dir+"/merged", "overlay", 0, "lowerdir="+dir+"/lower,upperdir="+dir+"/upper,workdir="+dir+"/work")
}

func tryNFTables() error {
	nft, err := exec.LookPath("nft")
	if err != nil {
		return nil // reported as a missing tool
	}
	cmd := exec.Command(nft, "-f", "-")
	cmd.Stdin = strings.NewReader(`table ip probe {
	chain pre {
		type nat hook prerouting priority dstnat
		ct state new tcp dport 1 dnat to 192.0.2.1:2
	}
	chain post {
		type nat hook postrouting priority srcnat
		meta mark and 0x4000 != 0 masquerade
	}
}
`)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(strings.Fields(string(out)), " "))
	}
	return nil
}
