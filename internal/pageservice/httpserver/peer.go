package httpserver

import (
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// client is whom the service takes for one client: a user of this host, or another
// address.
type client struct {
	isUser bool
	uid    uint32
	addr   netip.Addr
	peer   string // a client of another host, as that one names it
}

// clientKey is the key of the client in the context of a connection.
type clientKey struct{}

// clientOf returns the client that sent a request.
func clientOf(r *http.Request) client {
	if c, ok := r.Context().Value(clientKey{}).(client); ok {
		return c
	}
	at, _ := netip.ParseAddrPort(r.RemoteAddr)
	return client{addr: network(at.Addr())}
}

// network returns the part of an address that is one client: of IPv6, all of a network.
func network(a netip.Addr) netip.Addr {
	if a = a.Unmap(); a.Is6() {
		p, _ := a.WithZone("").Prefix(64)
		return p.Addr()
	}
	return a
}

// identify finds out which client has opened a connection.
func identify(c net.Conn) client {
	switch c := c.(type) {
	case *net.UnixConn:
		if uid, err := peerOf(c); err == nil {
			return client{isUser: true, uid: uid}
		}
	case *net.TCPConn:
		here, _ := netip.ParseAddrPort(c.LocalAddr().String())
		there, _ := netip.ParseAddrPort(c.RemoteAddr().String())
		if there.Addr().IsLoopback() || there.Addr() == here.Addr() {
			if uid, err := ownerOf(there, here); err == nil {
				return client{isUser: true, uid: uid}
			}
		}
		return client{addr: network(there.Addr())}
	}
	return client{}
}

// peerOf returns the user at the other end of a socket with a path.
func peerOf(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = errors.Join(raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = cred.Uid
		}
	}), err)
	return uid, err
}

var errNoOwner = errors.New("the kernel does not know who has the socket")

// Of linux/inet_diag.h: a request is a head of netlink, inet_diag_req_v2, and in it
// inet_diag_sockid; an answer is a head and inet_diag_msg.
const (
	diagRequestBytes = unix.NLMSG_HDRLEN + 56
	diagSockID       = unix.NLMSG_HDRLEN + 8 // in a request
	diagUID          = unix.NLMSG_HDRLEN + 64
	diagInode        = unix.NLMSG_HDRLEN + 68
	diagAnswerBytes  = unix.NLMSG_HDRLEN + 72
)

// ownerOf asks the kernel which user has the TCP socket of this host that is bound to
// here and connected to there.
func ownerOf(here, there netip.AddrPort) (uid uint32, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return 0, err
	}
	if err := unix.Sendto(fd, diagRequest(here, there), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	b := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return 0, err
	}
	order := binary.NativeEndian
	switch {
	case n >= unix.NLMSG_HDRLEN+4 && order.Uint16(b[4:]) == unix.NLMSG_ERROR:
		return 0, syscall.Errno(-int32(order.Uint32(b[unix.NLMSG_HDRLEN:])))
	case n < diagAnswerBytes, order.Uint32(b[diagInode:]) == 0: // without an inode, the socket was closed, and seems to be root's
		return 0, errNoOwner
	}
	return order.Uint32(b[diagUID:]), nil
}

func diagRequest(here, there netip.AddrPort) []byte {
	b := make([]byte, diagRequestBytes)
	order := binary.NativeEndian
	order.PutUint32(b, diagRequestBytes)
	order.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	order.PutUint16(b[6:], unix.NLM_F_REQUEST)
	family := uint8(unix.AF_INET)
	if here.Addr().Is6() && !here.Addr().Is4In6() {
		family = unix.AF_INET6
	}
	b[unix.NLMSG_HDRLEN], b[unix.NLMSG_HDRLEN+1] = family, unix.IPPROTO_TCP
	order.PutUint32(b[unix.NLMSG_HDRLEN+4:], ^uint32(0)) // sockets in all states
	id := b[diagSockID:]
	binary.BigEndian.PutUint16(id, here.Port())
	binary.BigEndian.PutUint16(id[2:], there.Port())
	copy(id[4:], here.Addr().Unmap().AsSlice())
	copy(id[20:], there.Addr().Unmap().AsSlice())
	order.PutUint64(id[40:], ^uint64(0)) // any cookie
	return b
}
