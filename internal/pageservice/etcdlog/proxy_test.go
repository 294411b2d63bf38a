package etcdlog

import (
	"net"
	"sync"
	"testing"
)

// proxy stands between a host and a member of etcd, and loses what it is told to.
type proxy struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup

	mu       sync.Mutex
	conns    map[net.Conn]bool
	requests gate
	answers  gate
}

// gate says what happens to bytes that go one way.
type gate struct {
	lose  bool
	left  int           // lose begins after so many bytes; -1: it does not
	began chan struct{} // closed when the first byte was lost
}

func newProxy(t testing.TB, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to, conns: map[net.Conn]bool{}, requests: gate{left: -1}, answers: gate{left: -1}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(server, client, &p.requests) })
		p.wg.Go(func() { p.copy(client, server, &p.answers) })
	}
}

// copy copies one way until either end is closed.
func (p *proxy) copy(to, from net.Conn, g *gate) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if _, err := to.Write(buffer[:p.pass(g, n)]); err != nil {
			return
		}
	}
}

// pass returns how many of so many bytes go through.
func (p *proxy) pass(g *gate, n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !g.lose && g.left >= 0 {
		if g.left -= n; g.left >= 0 {
			return n
		}
		g.lose, n = true, n+g.left
		close(g.began)
		return n
	}
	if g.lose {
		return 0
	}
	return n
}

// lose loses what goes through a gate after so many more bytes, and returns what is closed then.
func (p *proxy) lose(g *gate, after int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	g.left, g.began = after, make(chan struct{})
	return g.began
}

// heal lets everything through, on new connections.
func (p *proxy) heal() {
	p.mu.Lock()
	p.requests, p.answers = gate{left: -1}, gate{left: -1}
	p.mu.Unlock()
	p.cut()
}

// cut cuts all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}
