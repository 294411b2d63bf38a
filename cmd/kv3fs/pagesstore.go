package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/pageservice/forward"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// pagesStore is the value of --pages-store.
type pagesStore string

// UnmarshalText checks such a value.
func (s *pagesStore) UnmarshalText(text []byte) error {
	*s = pagesStore(text)
	if *s == httpserver.Embedded {
		return nil
	}
	_, err := cluster.ParseStore(string(text))
	return err
}

// etcdFlags say how a host and etcd know each other.
type etcdFlags struct {
	StoreCA           givenPath `name:"store-ca" placeholder:"FILE" help:"Certificate of the authority that etcd's certificates are signed by; it turns TLS to etcd on."`
	StoreCert         givenPath `placeholder:"FILE" help:"Certificate of this client for etcd, if it wants one; with store-key."`
	StoreKey          givenPath `placeholder:"FILE" help:"Key of that certificate."`
	StoreUser         string    `placeholder:"NAME" help:"User of etcd."`
	StorePasswordFile givenPath `placeholder:"FILE" help:"File with that user's password."`
}

// cluster returns how hosts agree on the page index; nil: they do not.
func (f *pagesFlags) cluster(prefix string) (*daemon.PagesCluster, error) {
	if f.Store == httpserver.Embedded {
		for name, given := range map[string]bool{
			"store-ca": f.StoreCA != "", "store-cert": f.StoreCert != "", "store-key": f.StoreKey != "", "store-user": f.StoreUser != "", "store-password-file": f.StorePasswordFile != "",
			"peer-listen": f.PeerListen != "", "peer-address": f.PeerAddress != "", "peer-token-file": f.PeerTokenFile != "", "peer-ca": f.PeerCA != "", "peer-cert": f.PeerCert != "", "peer-key": f.PeerKey != "",
		} {
			if given {
				return nil, bad(prefix+name, "needs --%sstore etcd://HOST:PORT,.../PREFIX", prefix)
			}
		}
		return nil, nil
	}
	c := &daemon.PagesCluster{Listen: f.PeerListen, Address: f.PeerAddress, Version: version()}
	var err error
	if c.Store.Config, err = cluster.ParseStore(string(f.Store)); err != nil {
		return nil, bad(prefix+"store", "%v", err)
	}
	if err := f.trustEtcd(prefix, &c.Store.Config); err != nil {
		return nil, err
	}
	return c, f.trustPeers(prefix, c)
}

// trustEtcd fills that in.
func (f *etcdFlags) trustEtcd(prefix string, c *cluster.Config) error {
	if (f.StoreCert == "") != (f.StoreKey == "") {
		return bad(prefix+"store-cert", "needs --%sstore-key, and that needs it", prefix)
	}
	if f.StoreCA != "" || f.StoreCert != "" {
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if f.StoreCA != "" {
		text, err := os.ReadFile(string(f.StoreCA))
		if err != nil {
			return bad(prefix+"store-ca", "%v", err)
		}
		if c.TLS.RootCAs = x509.NewCertPool(); !c.TLS.RootCAs.AppendCertsFromPEM(text) {
			return bad(prefix+"store-ca", "%s has no PEM certificate", f.StoreCA)
		}
	}
	if f.StoreCert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(string(f.StoreCert), string(f.StoreKey))
			return &pair, err
		}
		if _, err := load(); err != nil {
			return bad(prefix+"store-cert", "%v", err)
		}
		c.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	c.Username = f.StoreUser
	if (f.StoreUser == "") != (f.StorePasswordFile == "") {
		return bad(prefix+"store-user", "needs --%sstore-password-file, and that needs it", prefix)
	}
	if f.StorePasswordFile != "" {
		var err error
		if c.Password, err = readSecret("password", f.StorePasswordFile); err != nil {
			return bad(prefix+"store-password-file", "%v", err)
		}
	}
	return nil
}

// trustPeers fills in how hosts reach and know each other.
func (f *pagesFlags) trustPeers(prefix string, c *daemon.PagesCluster) error {
	if c.Listen == "" {
		return bad(prefix+"peer-listen", "is missing: with --%sstore etcd://..., other hosts send requests to the one that leads; give an address of this host, HOST:PORT", prefix)
	}
	for name, address := range map[string]string{"peer-listen": c.Listen, "peer-address": c.Address} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			return bad(prefix+name, "%q is not HOST:PORT", address)
		}
	}
	var err error
	if f.PeerTokenFile != "" {
		if c.Token, err = readToken(f.PeerTokenFile); err != nil {
			return bad(prefix+"peer-token-file", "%v", err)
		}
	}
	switch given := (forward.Certificates{CA: string(f.PeerCA), Cert: string(f.PeerCert), Key: string(f.PeerKey)}); {
	case given == (forward.Certificates{}) && c.Token == "":
		return bad(prefix+"peer-token-file", "is missing: hosts must show each other a token, or certificates (--%[1]speer-ca, --%[1]speer-cert, --%[1]speer-key)", prefix)
	case given != (forward.Certificates{}) && (given.CA == "" || given.Cert == "" || given.Key == ""):
		return bad(prefix+"peer-ca", "--%[1]speer-ca, --%[1]speer-cert and --%[1]speer-key need each other", prefix)
	default:
		c.Certificates = given
	}
	return nil
}

// readSecret reads what a file has, without spaces around it.
func readSecret(what string, path givenPath) (string, error) {
	b, err := os.ReadFile(string(path))
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	if secret := strings.TrimSpace(string(b)); secret != "" {
		return secret, nil
	}
	return "", fmt.Errorf("%s: %s is empty; write the %s into it", what, path, what)
}
