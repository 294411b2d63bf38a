package pagesbench

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// headRoom is the space before a body for the head, which is written once the length of
// the body is known.
const headRoom = 256

// newBody begins a request; the caller appends its body.
func newBody(b []byte) []byte { return append(b[:0], make([]byte, headRoom)...) }

// target is the address of a service.
type target struct {
	address string // host:port
	prefix  string // before every path
}

// seal writes the head in front of the body and returns the whole request.
func seal(b []byte, to target, path string) []byte {
	head := fmt.Appendf(nil, "POST %s%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", to.prefix, path, to.address, len(b)-headRoom)
	begin := headRoom - len(head)
	copy(b[begin:headRoom], head)
	return b[begin:]
}

// conn is one kept-alive connection, for one goroutine.
type conn struct {
	net net.Conn
	buf []byte
}

func dial(address string, limit time.Duration) (*conn, error) {
	n, err := net.DialTimeout("tcp", address, limit)
	if err != nil {
		return nil, err
	}
	return &conn{net: n, buf: make([]byte, 64<<10)}, nil
}

func (c *conn) close() error { return c.net.Close() }

// until sets the deadline of requests.
func (c *conn) until(t time.Time) error { return c.net.SetDeadline(t) }

// do sends a sealed request. The body of the answer is valid until the next call.
func (c *conn) do(request []byte) (status int, body []byte, err error) {
	if _, err := c.net.Write(request); err != nil {
		return 0, nil, err
	}
	n, headEnd := 0, -1
	for headEnd < 0 {
		if n == len(c.buf) {
			return 0, nil, errors.New("the head of the answer is too long")
		}
		m, err := c.net.Read(c.buf[n:])
		if err != nil {
			return 0, nil, err
		}
		n += m
		headEnd = bytes.Index(c.buf[:n], []byte("\r\n\r\n"))
	}
	status, bodyBytes, err := parseHead(c.buf[:headEnd])
	if err != nil {
		return 0, nil, err
	}
	begin := headEnd + 4
	end := begin + bodyBytes
	if end > len(c.buf) {
		c.buf = append(c.buf, make([]byte, end-len(c.buf))...)
	}
	for n < end {
		m, err := c.net.Read(c.buf[n:])
		if err != nil {
			return 0, nil, err
		}
		n += m
	}
	if n > end {
		return 0, nil, errors.New("more than one answer")
	}
	return status, c.buf[begin:end], nil
}

// parseHead returns what do needs to know. A body of unknown length is an error, except
// where there cannot be a body.
func parseHead(head []byte) (status, bodyBytes int, err error) {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, 0, fmt.Errorf("not an HTTP/1.1 answer: %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, 0, fmt.Errorf("status of %q: %w", line, err)
	}
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		if len(name) != len("content-length") || !bytes.EqualFold(name, []byte("content-length")) {
			continue
		}
		if bodyBytes, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil || bodyBytes < 0 {
			return 0, 0, fmt.Errorf("length of the answer: %q", value)
		}
		return status, bodyBytes, nil
	}
	if status != 204 {
		return 0, 0, errors.New("the answer has no Content-Length")
	}
	return status, 0, nil
}
