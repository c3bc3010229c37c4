package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/yaml"
)

const certValidity = 365 * 24 * time.Hour

// identity describes one certificate, for both servers and clients.
type identity struct {
	name         string // of its files
	commonName   string
	organization string
	dnsNames     []string
	ips          []string
	kubeconfig   bool
}

// identities are those of everything except kubelets.
var identities = []identity{
	{name: "apiserver", commonName: "kube-apiserver",
		dnsNames: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + clusterDomain, "localhost"},
		ips:      []string{nodeIP, apiServiceIP, boxLinkIP, "127.0.0.1"}},
	{name: "apiserver-kubelet-client", commonName: "kube-apiserver-kubelet-client", organization: "system:masters"},
	{name: "admin", commonName: "box-admin", organization: "system:masters", kubeconfig: true},
	{name: "kube-controller-manager", commonName: "system:kube-controller-manager", kubeconfig: true},
	{name: "kube-scheduler", commonName: "system:kube-scheduler", kubeconfig: true},
	{name: "kube-proxy", commonName: "system:kube-proxy", kubeconfig: true},
	{name: "dns", commonName: dnsUser, kubeconfig: true},
}

// identitiesOf returns the identities of a node's kubelet.
func identitiesOf(m member) []identity {
	user := "system:node:" + m.name()
	return []identity{
		{name: m.own("kubelet-serving"), commonName: user, organization: "system:nodes", dnsNames: []string{m.name()}, ips: []string{m.ip(), "127.0.0.1"}},
		{name: m.own("kubelet"), commonName: user, organization: "system:nodes", kubeconfig: true},
	}
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// writePKI fills dir with a new authority, all certificates, the service account
// key and the kubeconfigs.
func writePKI(dir string, now time.Time, nodes ...member) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority("libra-box", now)
	if err != nil {
		return err
	}
	if err := ca.write(dir, "ca"); err != nil {
		return err
	}
	all := slices.Clone(identities)
	for _, m := range nodes {
		all = append(all, identitiesOf(m)...)
	}
	for _, id := range all {
		if err := ca.issue(dir, id, now); err != nil {
			return fmt.Errorf("issue the certificate %s: %w", id.name, err)
		}
	}
	// A separate authority, because the holder of one of its certificates may
	// claim to be any user.
	frontProxy, err := newAuthority("libra-box-front-proxy", now)
	if err != nil {
		return err
	}
	if err := frontProxy.write(dir, "front-proxy-ca"); err != nil {
		return err
	}
	if err := frontProxy.issue(dir, identity{name: "front-proxy-client", commonName: "front-proxy-client"}, now); err != nil {
		return err
	}
	serviceAccounts, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	return keyutil.WriteKey(filepath.Join(dir, "sa.key"), serviceAccounts)
}

func newAuthority(name string, now time.Time) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: name, NotBefore: now.Add(-time.Hour)}, key)
	return authority{cert: cert, key: key}, err
}

func (a authority) write(dir, name string) error {
	return certutil.WriteCert(filepath.Join(dir, name+".crt"), encode(a.cert.Raw))
}

// issue writes the certificate, the key and, if asked for, the kubeconfig of id.
func (a authority) issue(dir string, id identity, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: id.commonName},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(certValidity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:     id.dnsNames,
	}
	if id.organization != "" {
		template.Subject.Organization = []string{id.organization}
	}
	for _, ip := range id.ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	if err := certutil.WriteCert(filepath.Join(dir, id.name+".crt"), encode(der)); err != nil {
		return err
	}
	if err := keyutil.WriteKey(filepath.Join(dir, id.name+".key"), keyPEM); err != nil {
		return err
	}
	if !id.kubeconfig {
		return nil
	}
	config, err := kubeconfig(id.name, encode(a.cert.Raw), encode(der), keyPEM)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, id.name+".kubeconfig"), config, 0o600)
}

// kubeconfig contains its certificates, so that one file suffices for any tool.
func kubeconfig(user string, ca, cert, key []byte) ([]byte, error) {
	type object = map[string]any
	return yaml.Marshal(object{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters": []object{{"name": clusterName, "cluster": object{
			"server": apiServerURL, "certificate-authority-data": ca}}},
		"users": []object{{"name": user, "user": object{
			"client-certificate-data": cert, "client-key-data": key}}},
		"contexts":        []object{{"name": clusterName, "context": object{"cluster": clusterName, "user": user}}},
		"current-context": clusterName,
	})
}

func encode(certificate []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: certificate})
}
