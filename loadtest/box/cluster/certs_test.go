package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

func TestWritePKI(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	now := time.Now()
	nodes := membersOf(testLayout, 3)
	if err := writePKI(dir, now, nodes...); err != nil {
		t.Fatal(err)
	}
	ca, frontProxy := pool(t, dir, "ca.crt"), pool(t, dir, "front-proxy-ca.crt")
	all := slices.Clone(identities)
	for _, m := range nodes {
		all = append(all, identitiesOf(m)...)
	}
	for _, id := range all {
		t.Run(id.name, func(t *testing.T) {
			cert := certificate(t, dir, id.name)
			opts := x509.VerifyOptions{Roots: ca, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
			if _, err := cert.Verify(opts); err != nil {
				t.Errorf("not signed by the authority: %v", err)
			}
			opts.Roots = frontProxy
			if _, err := cert.Verify(opts); err == nil {
				t.Error("signed by the front proxy's authority, which lets it be anybody")
			}
			for _, host := range append(id.dnsNames, id.ips...) {
				if err := cert.VerifyHostname(host); err != nil {
					t.Error(err)
				}
			}
			if got := cert.Subject.CommonName; got != id.commonName {
				t.Errorf("common name %q, want %q", got, id.commonName)
			}
			if _, err := os.Stat(filepath.Join(dir, id.name+".kubeconfig")); (err == nil) != id.kubeconfig {
				t.Errorf("kubeconfig: %v, want one: %t", err, id.kubeconfig)
			}
			if !id.kubeconfig {
				return
			}
			config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, id.name+".kubeconfig"))
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != apiServerURL || config.Insecure || len(config.CAData) == 0 {
				t.Errorf("kubeconfig has host %q, insecure %t, %d bytes of authority", config.Host, config.Insecure, len(config.CAData))
			}
		})
	}
	for _, name := range []string{"sa.key", "admin.key", "admin.kubeconfig"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want only its owner to read it", name, info.Mode())
		}
	}
}

func pool(t *testing.T, dir, name string) *x509.CertPool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		t.Fatalf("%s holds no certificate", name)
	}
	return pool
}

func certificate(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}
