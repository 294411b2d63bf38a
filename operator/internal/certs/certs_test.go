package certs_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kv3fs/kv3fs/operator/internal/certs"
)

const name = "main.daemons.kv3fs.io"

func renewed(t *testing.T, old map[string][]byte, now time.Time) map[string][]byte {
	t.Helper()
	data, due, err := certs.Renewed(old, name, now)
	if err != nil {
		t.Fatal(err)
	}
	if !due.After(now) || due.After(now.Add(certs.Life)) {
		t.Errorf("to be looked at again at %s, at %s", due, now)
	}
	return data
}

// trusts says whether a client with the certificates to trust of one Secret reaches a server with the certificate of another.
func trusts(t *testing.T, client, server map[string][]byte) bool {
	t.Helper()
	pair, err := tls.X509KeyPair(server[corev1.TLSCertKey], server[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(client[certs.Trust]) {
		t.Fatal("no certificate to trust")
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}, DisableKeepAlives: true}}
	response, err := c.Get(s.URL)
	if err == nil {
		response.Body.Close()
	}
	return err == nil
}

// A certificate is renewed before it ends, and whoever has the next one to trust trusts daemons that still show this one. Tokens stay.
func TestRotation(t *testing.T) {
	now := time.Now()
	first := renewed(t, nil, now)
	if !trusts(t, first, first) {
		t.Fatal("a client that trusts the certificate does not reach its server")
	}
	if again := renewed(t, first, now.Add(certs.Life/2)); !maps.EqualFunc(first, again, bytes.Equal) {
		t.Error("a certificate that is good was made anew")
	}
	second := renewed(t, first, now.Add(certs.Life*3/4))
	if bytes.Equal(first[corev1.TLSCertKey], second[corev1.TLSCertKey]) {
		t.Fatal("a certificate with a quarter of its life left was not renewed")
	}
	if !bytes.Equal(first[certs.Token], second[certs.Token]) || len(first[certs.Token]) < 20 {
		t.Errorf("the token was %q, and is %q", first[certs.Token], second[certs.Token])
	}
	if !trusts(t, second, first) {
		t.Error("a client does not trust a daemon that has not got the new certificate yet")
	}
	// Much later: what has ended is trusted no more.
	third := renewed(t, second, now.Add(3*certs.Life))
	if bytes.Contains(third[certs.Trust], first[corev1.TLSCertKey]) {
		t.Error("a certificate that has ended is still trusted")
	}
}

// What somebody has damaged is made anew.
func TestDamaged(t *testing.T) {
	now := time.Now()
	good := renewed(t, nil, now)
	other := renewed(t, nil, now)
	for what, damage := range map[string]func(map[string][]byte){
		"no key":            func(d map[string][]byte) { delete(d, corev1.TLSPrivateKeyKey) },
		"another's key":     func(d map[string][]byte) { d[corev1.TLSPrivateKeyKey] = other[corev1.TLSPrivateKeyKey] },
		"nothing to trust":  func(d map[string][]byte) { d[certs.Trust] = other[certs.Trust] },
		"no certificate":    func(d map[string][]byte) { d[corev1.TLSCertKey] = []byte("x") },
		"no token":          func(d map[string][]byte) { delete(d, certs.Token) },
		"nobody's peer":     func(d map[string][]byte) { d[certs.PeerToken] = nil },
		"a foreign tls.crt": func(d map[string][]byte) { d[corev1.TLSCertKey] = other[corev1.TLSCertKey] },
	} {
		t.Run(what, func(t *testing.T) {
			data := maps.Clone(good)
			damage(data)
			mended := renewed(t, data, now)
			if !trusts(t, mended, mended) {
				t.Error("daemons cannot be asked")
			}
			for _, key := range []string{certs.Token, certs.PeerToken} {
				if len(mended[key]) == 0 {
					t.Errorf("there is no %s", key)
				}
			}
		})
	}
	if data, _, err := certs.Renewed(good, "other.daemons.kv3fs.io", now); err != nil || bytes.Equal(data[corev1.TLSCertKey], good[corev1.TLSCertKey]) {
		t.Errorf("%v; another name has the same certificate", err)
	}
}
