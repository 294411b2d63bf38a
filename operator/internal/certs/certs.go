// Package certs makes what the operator and daemons know each other by: a token, and a certificate that is renewed before it ends.
//
// A certificate is its own authority, so there is no key that could sign others. While daemons still show the former one, which is as
// long as kubelet takes to bring them the new one, clients trust both.
package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Keys of the Secret.
const (
	Token     = "token"      // what the operator, and Prometheus, show daemons
	PeerToken = "peer-token" // what daemons show each other
	Trust     = "ca.crt"     // certificates to trust
)

// Life is how long a certificate is good. It is renewed when a third is left.
const Life = 90 * 24 * time.Hour

// Renewed returns the contents of a Secret for a daemon of that name: old where it is still good. It needs to be looked at again at due.
func Renewed(old map[string][]byte, name string, now time.Time) (data map[string][]byte, due time.Time, err error) {
	data = map[string][]byte{}
	for _, key := range []string{Token, PeerToken} {
		data[key] = old[key]
		if len(data[key]) == 0 {
			data[key] = []byte(rand.Text())
		}
	}
	current, ok := parse(old, name)
	if !ok || now.After(renewal(current)) || now.Before(current.NotBefore) {
		cert, key, err := issue(name, now)
		if err != nil {
			return nil, due, fmt.Errorf("make a certificate for %s: %w", name, err)
		}
		if current, err = x509.ParseCertificate(cert.Bytes); err != nil {
			return nil, due, fmt.Errorf("make a certificate for %s: %w", name, err)
		}
		data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey] = pem.EncodeToMemory(cert), pem.EncodeToMemory(key)
		data[Trust] = append(data[corev1.TLSCertKey], lasting(old[Trust], now)...)
		return data, renewal(current), nil
	}
	for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey, Trust} {
		data[key] = old[key]
	}
	return data, renewal(current), nil
}

func renewal(c *x509.Certificate) time.Time { return c.NotAfter.Add(-Life / 3) }

// parse returns the certificate of a Secret, if it is whole, for that name, and trusted by clients.
func parse(data map[string][]byte, name string) (*x509.Certificate, bool) {
	block, _ := pem.Decode(data[corev1.TLSCertKey])
	keyBlock, _ := pem.Decode(data[corev1.TLSPrivateKeyKey])
	if block == nil || keyBlock == nil || !bytes.Contains(data[Trust], data[corev1.TLSCertKey]) {
		return nil, false
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil || c.VerifyHostname(name) != nil {
		return nil, false
	}
	key, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, false
	}
	private, ok := key.(*ecdsa.PrivateKey)
	return c, ok && private.PublicKey.Equal(c.PublicKey)
}

// lasting returns the certificates that are still good, two at most: nobody shows an older one.
func lasting(trusted []byte, now time.Time) []byte {
	var kept []byte
	for range 2 {
		var block *pem.Block
		if block, trusted = pem.Decode(trusted); block == nil {
			break
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && now.Before(c.NotAfter) {
			kept = append(kept, pem.EncodeToMemory(block)...)
		}
	}
	return kept
}

func issue(name string, now time.Time) (cert, key *pem.Block, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	template := x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		NotBefore:    now.Add(-5 * time.Minute), // clocks of nodes differ
		NotAfter:     now.Add(Life),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	bytes, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return &pem.Block{Type: "CERTIFICATE", Bytes: der}, &pem.Block{Type: "PRIVATE KEY", Bytes: bytes}, nil
}
