package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificates are one authority's: for the members, and for a client.
type certificates struct {
	ca, server, serverKey string // files
	user, userKey         string // of a client, likewise
	client                *tls.Config
}

func newCertificates(t testing.TB, dir string, members []netip.Addr) *certificates {
	t.Helper()
	c := &certificates{ca: filepath.Join(dir, "ca.pem"), server: filepath.Join(dir, "server.pem"), serverKey: filepath.Join(dir, "server.key"), user: filepath.Join(dir, "client.pem"), userKey: filepath.Join(dir, "client.key")}
	a := newAuthority(t)
	var ips []net.IP
	for _, m := range members {
		ips = append(ips, m.AsSlice())
	}
	// The members' gateway is a client of theirs, with the same certificate.
	cert, key := a.issue(t, "members", ips, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	clientCert, clientKey := a.issue(t, "client", nil, x509.ExtKeyUsageClientAuth)
	for name, content := range map[string][]byte{c.ca: a.pem, c.server: cert, c.serverKey: key, c.user: clientCert, c.userKey: clientKey} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.pem)
	c.client = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	return c
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kv3fs tests"}, SerialNumber: big.NewInt(1),
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{cert: template, key: newKey(t)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) issue(t testing.TB, name string, ips []net.IP, usage ...x509.ExtKeyUsage) (certPEM, keyPEM []byte) {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, SerialNumber: big.NewInt(time.Now().UnixNano()),
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: ips, ExtKeyUsage: usage, KeyUsage: x509.KeyUsageDigitalSignature,
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}
