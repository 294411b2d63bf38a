package cluster

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// DefaultLeaseTTL is the default of Config.LeaseTTL.
const DefaultLeaseTTL = 5 * time.Second

const (
	defaultPort = "2379"
	// shortestLease is the least that an etcd with defaults grants.
	shortestLease = 2 * time.Second
)

// Config says where etcd is, and who asks.
type Config struct {
	Endpoints []string    // members of etcd, HOST:PORT each
	Prefix    string      // of all keys: begins with a slash and does not end with one
	TLS       *tls.Config // nil: no TLS
	Username  string      // "": none, or that of the certificate
	Password  string

	HostID  string // names this host in the cluster; no two hosts have the same
	Address string // where other hosts reach this host's daemon, HOST:PORT
	Version string // of kv3fs

	// LeaseTTL is how long a leader that has died keeps the others waiting; whole seconds, at least 2 s. 0: 5 s. All
	// hosts of a cluster should have the same.
	LeaseTTL time.Duration

	Logger *slog.Logger // nil: none
}

var (
	validPrefix = regexp.MustCompile(`^(/[A-Za-z0-9._-]+)+$`)
	validHostID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
)

// ParseStore reads etcd://HOST[:PORT],.../PREFIX. The Config has Endpoints and Prefix only.
func ParseStore(s string) (Config, error) {
	fail := func(why string) (Config, error) {
		return Config{}, fmt.Errorf("%s: must be etcd://HOST:PORT,HOST:PORT,.../PREFIX: %s", withoutPassword(s), why)
	}
	rest, ok := strings.CutPrefix(s, "etcd://")
	if !ok {
		return fail("it begins otherwise")
	}
	hosts, prefix, _ := strings.Cut(rest, "/")
	if strings.Contains(hosts, "@") {
		return fail("user and password are options of their own: every user of this host can read command lines")
	}
	c := Config{Prefix: "/" + strings.TrimSuffix(prefix, "/")}
	if !validPrefix.MatchString(c.Prefix) {
		return fail("PREFIX keeps this cluster's keys apart from others', for example kv3fs/1; letters, digits, dots, dashes and underscores, in parts between slashes")
	}
	for _, h := range strings.Split(hosts, ",") {
		endpoint, err := parseEndpoint(h)
		if err != nil {
			return fail(err.Error())
		}
		c.Endpoints = append(c.Endpoints, endpoint)
	}
	return c, nil
}

func parseEndpoint(s string) (string, error) {
	u, err := url.Parse("//" + s)
	if err != nil || u.Host != s || u.Hostname() == "" {
		return "", fmt.Errorf("%q is no HOST:PORT", s)
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// withoutPassword hides what looks like a password, for messages.
func withoutPassword(s string) string {
	scheme, rest, found := strings.Cut(s, "://")
	if !found {
		scheme, rest = "", s
	} else {
		scheme += "://"
	}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		rest = "..." + rest[i:]
	}
	return scheme + rest
}

// withDefaults checks c and returns it with defaults in place of zeros.
func (c Config) withDefaults() (Config, error) {
	if c.LeaseTTL == 0 {
		c.LeaseTTL = DefaultLeaseTTL
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case len(c.Endpoints) == 0:
		return c, errors.New("etcd: no member is named")
	case !validPrefix.MatchString(c.Prefix):
		return c, fmt.Errorf("etcd: %q is no prefix of keys: /NAME or /NAME/NAME", c.Prefix)
	case !validHostID.MatchString(c.HostID):
		return c, fmt.Errorf("etcd: %q does not name a host: 1 to 128 letters, digits, dots, dashes and underscores", c.HostID)
	case c.LeaseTTL < shortestLease || c.LeaseTTL%time.Second != 0:
		return c, fmt.Errorf("etcd: a lease of %v: whole seconds, and at least %v", c.LeaseTTL, shortestLease)
	case c.Password != "" && c.Username == "":
		return c, errors.New("etcd: a password without a user")
	}
	return c, nil
}
