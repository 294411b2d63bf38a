package etcd

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy passes TCP connections on, and counts them.
type Proxy struct {
	listener net.Listener
	to       string
	accepted atomic.Int64

	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]bool
	ended bool
}

// NewProxy starts a proxy that ends with the test.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, to: to, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(p.end)
	return p
}

// Endpoint returns where it listens.
func (p *Proxy) Endpoint() string { return p.listener.Addr().String() }

// Accepted returns how many connections there have been.
func (p *Proxy) Accepted() int { return int(p.accepted.Load()) }

func (p *Proxy) accept() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return // it was closed
		}
		p.accepted.Add(1)
		to, err := net.Dial("tcp", p.to)
		if err != nil {
			from.Close()
			continue
		}
		if !p.add(from, to) {
			return
		}
		p.wg.Go(func() { p.pass(from, to) })
		p.wg.Go(func() { p.pass(to, from) })
	}
}

// add remembers connections for end.
func (p *Proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.ended {
			c.Close()
		}
		p.conns[c] = true
	}
	return !p.ended
}

// pass copies one direction until either side ends.
func (p *Proxy) pass(from, to net.Conn) {
	_, _ = io.Copy(to, from) // its end, and why, is seen on both sides
	from.Close()
	to.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, from)
	delete(p.conns, to)
}

func (p *Proxy) end() {
	p.listener.Close()
	p.mu.Lock()
	p.ended = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
