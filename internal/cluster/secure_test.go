package cluster

import (
	"crypto/tls"
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// With TLS and users, a host needs a certificate, a password, and the prefix; whoever lacks one is told which.
func TestSecure(t *testing.T) {
	t.Parallel()
	m := etcd.Start(t, etcd.Options{Members: 1, TLS: true, Password: "root's"})
	good := configOf(t, m, "a")
	good.Username, good.Password = "kv3fs", "secret"
	m.AddUser(good.Username, good.Password, good.Prefix)
	term := elect(t, join(t, good))
	if !fenced(t, term.c, term) {
		t.Error("cannot write")
	}
	if is := term.c.Space(background(t)); is[0].Err != nil || is[0].QuotaBytes != DefaultQuotaBytes {
		t.Errorf("%+v", is)
	}
	if err := term.c.Identify(background(t), "data-1", false); err != nil {
		t.Error(err)
	}
	if err := term.Resign(background(t)); err != nil {
		t.Error(err)
	}

	var wg sync.WaitGroup
	for name, test := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"wrong password":    {func(c *Config) { c.Password = "wrong" }, "invalid user ID or password"},
		"no password":       {func(c *Config) { c.Username, c.Password = "", "" }, "grant-permission"},
		"no certificate":    {func(c *Config) { c.TLS = &tls.Config{RootCAs: c.TLS.RootCAs} }, "certificate"},
		"unknown authority": {func(c *Config) { c.TLS = &tls.Config{Certificates: c.TLS.Certificates} }, "unknown authority"},
		"no TLS":            {func(c *Config) { c.TLS = nil }, "wants TLS"},
		"another prefix":    {func(c *Config) { c.Prefix = "/other" }, "grant-permission"},
	} {
		config := good
		test.change(&config)
		wg.Go(func() { // some wait until Open gives up
			c, err := Open(background(t), config)
			if err == nil {
				t.Errorf("%s: accepted", name)
				_ = c.Close()
				return
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
}
