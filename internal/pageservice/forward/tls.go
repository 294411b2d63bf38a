package forward

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/kv3fs/kv3fs/internal/logpace"
)

// Certificates are files that a host shows itself and knows others by.
type Certificates struct {
	CA        string // of the authority that has signed the certificates of all hosts, and no others
	Cert, Key string // of this host
}

// Load reads the files and returns what the listener for other hosts uses, and what their client uses. Cert and
// Key are read again for each connection, so that they can be renewed.
func (f Certificates) Load(log *slog.Logger) (server, client *tls.Config, err error) {
	text, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of the authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, nil, fmt.Errorf("certificate of the authority: %s has no PEM certificate", f.CA)
	}
	load := func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("certificate of this host, %s and %s: %w", f.Cert, f.Key, err)
		}
		return &c, nil
	}
	if _, err := load(); err != nil {
		return nil, nil, err
	}
	pace := &logpace.Pace{}
	server = &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return load() },
		ClientAuth:     tls.RequestClientCert, // checked below, where the reason can be logged
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			from := hello.Conn.RemoteAddr().String()
			c := server.Clone()
			c.GetConfigForClient = nil
			c.VerifyConnection = func(s tls.ConnectionState) error {
				err := verifyHost(s.PeerCertificates, pool)
				if err != nil {
					if more, now := pace.Log(err.Error()); now {
						log.Warn("refused another host of the page service", "from", from, "why", err, "more", more)
					}
				}
				return err
			}
			return c, nil
		},
	}
	client = &tls.Config{
		MinVersion:           tls.VersionTLS13,
		RootCAs:              pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() },
	}
	return server, client, nil
}

// verifyHost returns why a certificate is not that of a host.
func verifyHost(chain []*x509.Certificate, pool *x509.CertPool) error {
	if len(chain) == 0 {
		return errors.New("it shows no certificate: all hosts need --pages-peer-cert")
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return fmt.Errorf("its certificate is not one of --pages-peer-ca for clients: %w", err)
	}
	return nil
}
