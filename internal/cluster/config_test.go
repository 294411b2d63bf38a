package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseStore(t *testing.T) {
	for store, want := range map[string]Config{
		"etcd://a:1,b:2,c:3/kv3fs":      {Endpoints: []string{"a:1", "b:2", "c:3"}, Prefix: "/kv3fs"},
		"etcd://a/kv3fs/7/":             {Endpoints: []string{"a:2379"}, Prefix: "/kv3fs/7"},
		"etcd://[::1]:5,[fe80::2]/x":    {Endpoints: []string{"[::1]:5", "[fe80::2]:2379"}, Prefix: "/x"},
		"etcd://10.0.0.1:2379/a.b-c_d/": {Endpoints: []string{"10.0.0.1:2379"}, Prefix: "/a.b-c_d"},
	} {
		c, err := ParseStore(store)
		if err != nil || !slices.Equal(c.Endpoints, want.Endpoints) || c.Prefix != want.Prefix {
			t.Errorf("%s: %v %q, %v", store, c.Endpoints, c.Prefix, err)
		}
	}
	for store, says := range map[string]string{
		"":                       "etcd://HOST:PORT",
		"embedded":               "etcd://HOST:PORT",
		"http://a:1/x":           "etcd://HOST:PORT",
		"etcd://a:1":             "PREFIX",
		"etcd://a:1/":            "PREFIX",
		"etcd://a:1/x//y":        "PREFIX",
		"etcd://a:1/x y":         "PREFIX",
		"etcd://a:1/x?y":         "PREFIX",
		"etcd:///x":              "no HOST:PORT",
		"etcd://a:1,/x":          "no HOST:PORT",
		"etcd://:1/x":            "no HOST:PORT",
		"etcd://a:port/x":        "no HOST:PORT",
		"etcd://u:secret@a:1/x":  "command lines",
		"etcd2://u:secret@a:1/x": "etcd://HOST:PORT",
	} {
		_, err := ParseStore(store)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", store, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: shows the password: %v", store, err)
		}
	}
}

func TestConfig(t *testing.T) {
	good := Config{Endpoints: []string{"a:1"}, Prefix: "/x", HostID: "host1"}
	if c, err := good.withDefaults(); err != nil || c.LeaseTTL != DefaultLeaseTTL || c.Logger == nil {
		t.Errorf("%+v, %v", c, err)
	}
	for name, change := range map[string]func(*Config){
		"no members":    func(c *Config) { c.Endpoints = nil },
		"no prefix":     func(c *Config) { c.Prefix = "" },
		"half a second": func(c *Config) { c.LeaseTTL = 2500 * time.Millisecond },
		"short lease":   func(c *Config) { c.LeaseTTL = time.Second },
		"no host":       func(c *Config) { c.HostID = "" },
		"host with /":   func(c *Config) { c.HostID = "a/b" },
		"password only": func(c *Config) { c.Password = "x" },
	} {
		c := good
		change(&c)
		if _, err := c.withDefaults(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestKnownFaults(t *testing.T) {
	for version, n := range map[string]int{
		"3.3.25": 1, "3.4.19": 7, "3.4.23": 8, "3.4.45": 0, "3.4.42": 1, "3.4.41": 2,
		"3.5.12": 7, "3.5.27": 2, "3.5.28": 1, "3.5.30": 0,
		"3.6.4": 3, "3.6.9": 1, "3.6.11": 0, "3.7.0": 0, "3.7.0-rc.1": 0, "4.0.0": 0, "2.3.8": 1,
	} {
		if found, err := KnownFaults(version); err != nil || len(found) != n {
			t.Errorf("%s: %q, %v", version, found, err)
		}
	}
	for _, version := range []string{"", "3", "3.x.1", "3.4.-1", "not_decided"} {
		if found, err := KnownFaults(version); err == nil {
			t.Errorf("%q: %q", version, found)
		}
	}
}
