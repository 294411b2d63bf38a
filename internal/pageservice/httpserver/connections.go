package httpserver

import (
	linked "container/list"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
)

// connections bounds the open connections: each costs a descriptor and a goroutine, even
// if the client never sends anything. A client that may have no more loses the one that
// has been silent for longest: one on which no request has begun.
type connections struct {
	budget *budget
	count  func(more int) // of those on which a request has begun

	mu     sync.Mutex
	silent map[client]*linked.List // of *connection, the longest silent first
}

func newConnections(most int, count func(more int)) *connections {
	return &connections{budget: newBudget(int64(most)), count: count, silent: map[client]*linked.List{}}
}

// connection is a connection within the budget.
type connection struct {
	net.Conn
	client client
	place  *linked.Element // in the list of silent ones, or nil
	given  bool            // its place in the budget was given back, or to another
	active bool            // a request has begun
}

// limited is a listener that returns only connections within the budget, as *connection.
type limited struct {
	*Listener
	all  *connections
	hold *holdback
}

func (l limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			l.hold.await(context.Background()) // Serve and whoever holds back end that
			continue
		}
		if err != nil {
			return nil, err
		}
		if open := l.all.add(c); open != nil {
			return open, nil
		}
		_ = c.Close() // the client may have no more
	}
}

// add counts a connection. It returns nil if its client may have no more.
func (a *connections) add(c net.Conn) *connection {
	open := &connection{Conn: c, client: identify(c)}
	if a.budget.take(open.client, 1) || a.dropSilent(open.client) {
		return open
	}
	return nil
}

// dropSilent closes the connection of a client that has been silent for longest, if there
// is one. Another connection of the client has its place then.
func (a *connections) dropSilent(c client) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.silent[c]
	if l == nil {
		return false
	}
	oldest := l.Front().Value.(*connection)
	a.speaks(oldest)
	oldest.given = true
	_ = oldest.Close() // the server learns of it and ends its goroutine
	return true
}

// within returns a connection of a limited listener, which may have TLS around it.
func within(c net.Conn) *connection {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*connection)
}

// noteState is called by the server when the state of a connection changes.
func (a *connections) noteState(c net.Conn, s http.ConnState) {
	open := within(c)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch is := s == http.StateActive; {
	case is && !open.active:
		a.count(1)
	case !is && open.active:
		a.count(-1)
	}
	open.active = s == http.StateActive
	switch s {
	case http.StateNew, http.StateIdle:
		a.falls(open)
	case http.StateActive:
		a.speaks(open)
	case http.StateClosed, http.StateHijacked:
		a.speaks(open)
		a.give(open)
	}
}

// falls notes that a connection has fallen silent. The caller holds the lock.
func (a *connections) falls(c *connection) {
	if c.given || c.place != nil {
		return
	}
	if a.silent[c.client] == nil {
		a.silent[c.client] = linked.New()
	}
	c.place = a.silent[c.client].PushBack(c)
}

// speaks notes that a connection is no longer silent. The caller holds the lock.
func (a *connections) speaks(c *connection) {
	if c.place == nil {
		return
	}
	l := a.silent[c.client]
	l.Remove(c.place)
	c.place = nil
	if l.Len() == 0 {
		delete(a.silent, c.client)
	}
}

// give gives the place of a connection back, once. The caller holds the lock.
func (a *connections) give(c *connection) {
	if !c.given {
		c.given = true
		a.budget.give(c.client, 1)
	}
}
