package main

import (
	"crypto/tls"
	"fmt"
	"os"

	"github.com/kv3fs/kv3fs/internal/daemon"
)

// adminFlags say where operators and their tools find a daemon, with the prefix admin-.
type adminFlags struct {
	Listen    string    `placeholder:"HOST:PORT" help:"Address of metrics for Prometheus (/metrics), /healthz and /readyz, or off. Any other than a loopback address needs a token and a certificate. Default: 127.0.0.1:9180, if nothing listens there yet."`
	TokenFile givenPath `placeholder:"FILE" help:"File with the token that clients must send as a bearer token, or as the password in Basic authentication; only its owner, and its group, may read it. /healthz and /readyz need none."`
	Cert      givenPath `placeholder:"FILE" help:"Certificate of this address, for TLS. It is read again for each connection."`
	Key       givenPath `placeholder:"FILE" help:"Key of that certificate."`
	Pprof     bool      `help:"Show profiles of the process below /debug/pprof/."`
}

// defaultAdminListen is where a daemon is found by those who are not told otherwise.
const defaultAdminListen = "127.0.0.1:9180"

// config returns the configuration of the address.
func (f *adminFlags) config() (daemon.AdminWeb, error) {
	o := daemon.AdminWeb{Address: f.Listen, Profiles: f.Pprof}
	switch f.Listen {
	case "off":
		if f.TokenFile != "" || f.Cert != "" || f.Key != "" || f.Pprof {
			return o, bad("admin-listen", "is off: leave out --admin-token-file, --admin-cert, --admin-key and --admin-pprof")
		}
		return daemon.AdminWeb{}, nil
	case "":
		o.Address, o.Optional = defaultAdminListen, true
	}
	var err error
	if f.TokenFile != "" {
		if o.Token, err = readOwnSecret("token", f.TokenFile); err != nil {
			return o, bad("admin-token-file", "%v", err)
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		return o, bad("admin-cert", "needs --admin-key, and that needs it")
	}
	if f.Cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(string(f.Cert), string(f.Key))
			return &pair, err
		}
		if _, err := load(); err != nil {
			return o, bad("admin-cert", "%v", err)
		}
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return load() }}
	}
	if err := o.Validate(); err != nil {
		return o, bad("admin-listen", "%v", err)
	}
	return o, nil
}

// readOwnSecret is readSecret for a file that not everybody may read.
func readOwnSecret(what string, path givenPath) (string, error) {
	fi, err := os.Stat(string(path))
	if err == nil && fi.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("%s: everybody on this host may use %s: chmod o= it", what, path)
	}
	return readSecret(what, path)
}
