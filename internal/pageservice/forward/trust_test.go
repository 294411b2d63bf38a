package forward_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice/forward"
)

// authority signs certificates of hosts.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	return a
}

func (a *authority) sign(c *x509.Certificate, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "host"}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := c, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return made, key
}

// host makes the files of a host with an address or a name.
func (a *authority) host(name string, usage ...x509.ExtKeyUsage) forward.Certificates {
	a.t.Helper()
	c := &x509.Certificate{ExtKeyUsage: usage, KeyUsage: x509.KeyUsageDigitalSignature}
	if ip := net.ParseIP(name); ip != nil {
		c.IPAddresses = []net.IP{ip}
	} else {
		c.DNSNames = []string{name}
	}
	cert, key := a.sign(c, a)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	dir := a.t.TempDir()
	files := forward.Certificates{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	for _, f := range []struct {
		path, kind string
		der        []byte
	}{{files.CA, "CERTIFICATE", a.cert.Raw}, {files.Cert, "CERTIFICATE", cert.Raw}, {files.Key, "EC PRIVATE KEY", der}} {
		if err := os.WriteFile(f.path, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der}), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return files
}

var both = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}

// tlsHost starts a host with certificates.
func tlsHost(t *testing.T, l forward.Leaders, name string, files forward.Certificates) *host {
	t.Helper()
	said := &log{}
	server, client, err := files.Load(slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	h := startHost(t, l, hostOptions{name: name, serverTLS: server, peerTLS: client})
	h.trust = said
	return h
}

// TestCertificates: hosts with certificates of one authority answer for each other, without a token.
func TestCertificates(t *testing.T) {
	ca, l := newAuthority(t), newLeaders()
	a := tlsHost(t, l, "a", ca.host("127.0.0.1", both...))
	b := tlsHost(t, l, "b", ca.host("127.0.0.1", both...))
	a.lead(nil)
	l.set(a.target)
	b.await("/0/initialize", `{"num_pages":4}`)
	a.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
}

// TestForeignCertificates: neither side takes the other where one's certificate is not the authority's, or not for this, and
// both say so.
func TestForeignCertificates(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	signed := func(certs, ca forward.Certificates) forward.Certificates { certs.CA = ca.CA; return certs }
	ours := ca.host("127.0.0.1", both...)
	for _, c := range []struct {
		name           string
		leader, client forward.Certificates
		clientSays     string
		leaderSays     string
	}{
		{"a foreign client", ours, signed(other.host("127.0.0.1", both...), ours), "does not accept this host's certificate", "not one of --pages-peer-ca"},
		{"a foreign leader", signed(other.host("127.0.0.1", both...), ours), ours, "of another authority than --pages-peer-ca", ""},
		{"another name", ca.host("elsewhere.example", both...), ours, "for other names", ""},
		{"a server's certificate only", ours, ca.host("127.0.0.1", x509.ExtKeyUsageServerAuth), "does not accept this host's certificate", "for clients"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLeaders()
			a, b := tlsHost(t, l, "a", c.leader), tlsHost(t, l, "b", c.client)
			a.lead(nil)
			l.set(a.target)
			if why := b.refused("/0/exists", `{"keys":[]}`); !strings.Contains(why, c.clientSays) {
				t.Error(why)
			}
			b.log.await(t, c.clientSays)
			a.trust.await(t, c.leaderSays)
			if status, why := b.do("GET", "/readyz", ""); status != 503 || !strings.Contains(why, c.clientSays) {
				t.Errorf("readyz: %d %s", status, why)
			}
		})
	}
}

// TestNoCertificate: TLS on one side only is an error that says so.
func TestNoCertificate(t *testing.T) {
	ca, l := newAuthority(t), newLeaders()
	a := tlsHost(t, l, "a", ca.host("127.0.0.1", both...))
	b := startHost(t, l, hostOptions{name: "b", token: secret})
	a.lead(nil)
	l.set(a.target)
	if why := b.refused("/0/exists", `{"keys":[]}`); !strings.Contains(why, "with TLS on both hosts or on none") {
		t.Error(why)
	}
	b.lead(nil)
	a.follow()
	l.set(b.target)
	if why := a.refused("/0/exists", `{"keys":[]}`); !strings.Contains(why, "speaks no TLS") {
		t.Error(why)
	}
	// With TLS, and no certificate at all.
	c := startHost(t, l, hostOptions{name: "c", peerTLS: &tls.Config{InsecureSkipVerify: true}})
	a.lead(nil)
	l.set(a.target)
	if why := c.refused("/0/exists", `{"keys":[]}`); !strings.Contains(why, "does not accept this host's certificate") {
		t.Error(why)
	}
	a.trust.await(t, "it shows no certificate")
}

// TestRenewedCertificate: a certificate that is replaced is used without a restart.
func TestRenewedCertificate(t *testing.T) {
	ca, l := newAuthority(t), newLeaders()
	files := newAuthority(t).host("127.0.0.1", both...)
	right := ca.host("127.0.0.1", both...)
	files.CA = right.CA
	a, b := tlsHost(t, l, "a", right), tlsHost(t, l, "b", files)
	a.lead(nil)
	l.set(a.target)
	b.refused("/0/exists", `{"keys":[]}`)
	for _, f := range [][2]string{{right.Key, files.Key}, {right.Cert, files.Cert}} {
		text, err := os.ReadFile(f[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f[1], text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.await("/0/initialize", `{"num_pages":4}`)
}

// TestCertificateFiles: files that are no certificates are an error that names them.
func TestCertificateFiles(t *testing.T) {
	right := newAuthority(t).host("127.0.0.1", both...)
	for _, f := range []forward.Certificates{
		{CA: right.CA + "x", Cert: right.Cert, Key: right.Key}, {CA: right.Key, Cert: right.Cert, Key: right.Key},
		{CA: right.CA, Cert: right.Cert, Key: right.CA}, {CA: right.CA, Cert: "/nowhere", Key: right.Key},
	} {
		if _, _, err := f.Load(slog.Default()); err == nil || !strings.Contains(err.Error(), "certificate of ") {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// TestWrongToken: a host with another token, or none, is refused; both sides say so.
func TestWrongToken(t *testing.T) {
	for _, token := range []string{"", secret + "x", "x"} {
		l := newLeaders()
		a := startHost(t, l, hostOptions{name: "a", token: secret})
		b := startHost(t, l, hostOptions{name: "b", token: token})
		a.lead(nil)
		l.set(a.target)
		for range 2 {
			if why := b.refused("/0/initialize", `{"num_pages":4}`); !strings.Contains(why, "a at "+a.target.Address+" refuses this host's token: --pages-peer-token-file") {
				t.Error(why)
			}
		}
		a.log.await(t, "the token between hosts is missing or wrong")
		b.log.await(t, "refuses this host's token")
		if strings.Contains(a.log.String()+b.log.String(), secret) {
			t.Error("the token was logged")
		}
		a.want("/0/exists", `{"keys":["K"]}`, 404, `{"detail":"rank 0 of namespace 'kv' is not initialized: POST /0/initialize comes first"}`)
	}
}

// TestStrangers: what is not a host of this cluster gets nothing from the listener for hosts, and a host takes nothing from what is not
// the leader.
func TestStrangers(t *testing.T) {
	l := newLeaders()
	a := startHost(t, l, hostOptions{name: "a", token: secret})
	b := startHost(t, l, hostOptions{name: "b", token: secret})
	a.lead(nil)
	right := http.Header{"Authorization": {"Bearer " + secret}, "Kv3fs-Forward": {"2"}, "Kv3fs-Host": {"b"}, "Kv3fs-Cluster": {"the cluster"}, "Kv3fs-To": {"a"}, "Kv3fs-Client": {"uid 1"}}
	send := func(change func(http.Header)) int {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+a.target.Address+"/0/initialize", strings.NewReader(`{"num_pages":4}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = right.Clone()
		change(r.Header)
		w, err := a.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		w.Body.Close()
		return w.StatusCode
	}
	for _, c := range []struct {
		name   string
		change func(http.Header)
		status int
	}{
		{"right", func(http.Header) {}, 204},
		{"another version", func(h http.Header) { h.Set("Kv3fs-Forward", "1") }, 400},
		{"no version, as an engine", func(h http.Header) { h.Del("Kv3fs-Forward") }, 400},
		{"nobody", func(h http.Header) { h.Del("Kv3fs-Host") }, 400},
		{"a long name", func(h http.Header) { h.Set("Kv3fs-Client", strings.Repeat("x", 257)) }, 400},
		{"a namespace that cannot be", func(h http.Header) { h.Set("Kv3fs-Namespace", "a/b") }, 400},
		{"no token", func(h http.Header) { h.Del("Authorization") }, 401},
		{"a token in another way", func(h http.Header) { h.Set("Authorization", "Basic "+secret) }, 401},
	} {
		if got := send(c.change); got != c.status {
			t.Errorf("%s: %d, want %d", c.name, got, c.status)
		}
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		says    string
	}{
		"another program": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"exists":[true]}`)) }, "does not answer as a kv3fs does"},
		"a redirect":      {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "does not answer as a kv3fs does"},
		"a newer kv3fs": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Kv3fs-Forward", "9")
			w.Header().Set("Kv3fs-Version", "9.9")
			w.WriteHeader(400)
		}, `is kv3fs \"9.9\", which takes requests in another form`},
		"an endless answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Kv3fs-Forward", "2")
			w.Header().Set("Content-Length", "99999999999")
		}, "an answer of 99999999999 bytes"},
	} {
		l.set(forward.Target{Host: name, Address: serveHTTP(t, c.handler)})
		if why := b.refused("/0/exists", `{"keys":["K"]}`); !strings.Contains(why, c.says) {
			t.Errorf("%s: %s", name, why)
		}
	}
}
