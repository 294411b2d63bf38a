package forward

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialTimeout bounds how long a host may take to accept a connection, and then to agree on its TLS.
	dialTimeout = 2 * time.Second
	// keepAlive is how often the kernel asks an idle connection's other end whether it is there.
	keepAlive = 15 * time.Second
	// unsentTimeout is for how long the kernel goes on sending what the other host does not acknowledge.
	unsentTimeout = 10 * time.Second
	// A request of 512 keys is written by one call, and its answer read by one.
	writeBytes = 64 << 10
	readBytes  = 16 << 10
	// maxAnswerBytes bounds an answer.
	maxAnswerBytes = 64 << 20
)

// conn is a connection to a host, for one request at a time. A request is sent, and its answer read, by the
// goroutine that asks: handing either to another one costs as much as sending it. When ask returns,
// nothing reads the request's body any more, and nothing that was not sent will be: neither by this
// process nor, since the connection is closed with what it has not sent, by its kernel.
type conn struct {
	net.Conn
	tcp  *net.TCPConn
	in   *bufio.Reader
	out  *bufio.Writer
	idle time.Time // since when
}

// dial connects to a host. Errors of the connection itself are net.OpErrors of "dial".
func dial(ctx context.Context, address string, t *tls.Config) (*conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unsentTimeout.Milliseconds()))
		}), err)
	}}
	n, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: n, tcp: n.(*net.TCPConn)}
	if err := c.tcp.SetLinger(0); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if t != nil {
		if c.Conn, err = handshake(ctx, n, address, t); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	c.in, c.out = bufio.NewReaderSize(c.Conn, readBytes), bufio.NewWriterSize(c.Conn, writeBytes)
	return c, nil
}

func handshake(ctx context.Context, n net.Conn, address string, t *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	t = t.Clone()
	t.ServerName, _, _ = net.SplitHostPort(address) // it was dialled
	c := tls.Client(n, t)
	return c, c.HandshakeContext(ctx)
}

// isAlive reports whether the other end has neither closed the connection nor sent what nobody has asked for.
func (c *conn) isAlive() bool {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return false
	}
	var got error
	err = raw.Read(func(fd uintptr) bool {
		_, _, got = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	return err == nil && got == unix.EAGAIN
}

// ask sends a request, and returns the answer with its body. kept reports that the connection may be used again;
// the caller closes it otherwise. If ctx ends, ask returns at once.
func (c *conn) ask(ctx context.Context, r *http.Request) (w *http.Response, body []byte, kept bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) }) // an error says that it is closed
	defer func() { kept = stop() && kept }()
	if err = r.Write(c.out); err == nil {
		err = c.out.Flush()
	}
	if err != nil {
		return nil, nil, false, err
	}
	if w, err = http.ReadResponse(c.in, r); err != nil {
		return nil, nil, false, err
	}
	if w.ContentLength > maxAnswerBytes {
		return w, nil, false, nil // strange says so
	}
	body, err = readAnswer(w)
	return w, body, err == nil && !w.Close && c.in.Buffered() == 0, err
}

// readAnswer reads a body, into memory that grows with what arrives.
func readAnswer(w *http.Response) ([]byte, error) {
	var b bytes.Buffer
	if w.ContentLength > 0 {
		b.Grow(int(min(w.ContentLength, 1<<20)) + bytes.MinRead)
	}
	n, err := b.ReadFrom(io.LimitReader(w.Body, maxAnswerBytes+1))
	if err == nil && n > maxAnswerBytes {
		err = errors.New("an answer that does not end")
	}
	return b.Bytes(), err
}
