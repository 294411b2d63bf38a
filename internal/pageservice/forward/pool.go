package forward

import (
	"sync"
	"time"
)

const (
	// idleTimeout is for how long a connection is kept that is not used: less than what closes
	// it on the way.
	idleTimeout = 45 * time.Second
	// idleConnections is how many are kept.
	idleConnections = 128
)

// pool keeps the connections to one host that nobody uses now, the last used one last.
type pool struct {
	mu   sync.Mutex
	to   Target
	idle []*conn
}

// take returns a connection to a host that was used before, or nil.
func (p *pool) take(to Target) *conn {
	for {
		c := p.last(to)
		if c == nil || c.isAlive() {
			return c
		}
		_ = c.Close() // the other end has
	}
}

func (p *pool) last(to Target) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if p.to != to || n == 0 {
		return nil
	}
	c := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return c
}

// give keeps a connection to a host, if that is the one that connections are kept to.
func (p *pool) give(to Target, c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to != to || len(p.idle) == idleConnections {
		_ = c.Close() // nobody needs it
		return
	}
	c.idle = time.Now()
	p.idle = append(p.idle, c)
}

// keep closes connections to other hosts than one, and those that were idle for too long.
func (p *pool) keep(to Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if p.to == to {
		for n = 0; n < len(p.idle) && time.Since(p.idle[n].idle) > idleTimeout; n++ {
		}
	}
	for _, c := range p.idle[:n] {
		_ = c.Close() // nobody needs it
	}
	p.to, p.idle = to, append([]*conn(nil), p.idle[n:]...)
}
