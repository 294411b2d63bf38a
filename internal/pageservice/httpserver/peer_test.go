package httpserver

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// Users of this host are clients by their id, on sockets with a path and on loopback.
func TestUsersAreClients(t *testing.T) {
	want := client{isUser: true, uid: uint32(os.Geteuid())}
	for network, at := range map[string]string{"unix": filepath.Join(t.TempDir(), "s"), "tcp4": "127.0.0.1:0", "tcp6": "[::1]:0", "tcp": ":0"} {
		l, err := net.Listen(network, at)
		if err != nil {
			t.Logf("%s: %v", network, err) // a host without IPv6
			continue
		}
		defer l.Close()
		c, err := net.Dial(l.Addr().Network(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		here, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer here.Close()
		if got := identify(here); got != want {
			t.Errorf("%s: %+v, want %+v", network, got, want)
		}
	}
}

// Others are clients by their address; of IPv6 each may have a network of many.
func TestAddressesAreClients(t *testing.T) {
	for addr, want := range map[string]string{
		"10.1.2.3": "10.1.2.3", "::ffff:10.1.2.3": "10.1.2.3",
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "fe80::1%eth0": "fe80::",
	} {
		if got := network(netip.MustParseAddr(addr)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}
