package web

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"golang.org/x/sys/unix"
)

// connections bounds the open connections, and so the descriptors that clients can take from the rest of the daemon. Where there
// would be too many, the one that has been idle for longest goes: a client that keeps many open does not keep probes out.
type connections struct {
	most int // and as many again that were closed here

	mu     sync.Mutex
	open   int // as far as the server knows
	idle   list.List
	places map[net.Conn]*list.Element // in idle, which has the longest idle first
	closed map[net.Conn]bool          // here: the server has yet to learn of it, and its descriptor may still be open
	served sync.WaitGroup
}

// roomForConnections returns how many there may be: with those that are being closed, at most a 32nd of the descriptors of the process, which
// the mount and the rings need.
func roomForConnections() int {
	const part, fewest = 64, 4
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return fewest
	}
	return int(max(min(files.Cur/part, mostConnections), fewest))
}

// bounded is a listener that returns connections only while there is room.
type bounded struct {
	net.Listener
	all *connections
}

func (l bounded) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.all.enter() {
			return c, err
		}
		_ = c.Close() // there is no room
	}
}

// enter makes room for a connection and counts it. It reports whether there is room.
func (a *connections) enter() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == 2*a.most {
		return false
	}
	if a.open-len(a.closed) == a.most {
		front := a.idle.Front()
		if front == nil {
			return false
		}
		c := front.Value.(net.Conn)
		a.busy(c)
		if a.closed == nil {
			a.closed = make(map[net.Conn]bool)
		}
		a.closed[c] = true
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn() // without a farewell, which may wait for the client
		}
		_ = c.Close() // the server learns of it
	}
	a.open++
	a.served.Add(1)
	return true
}

// note is called by the server when the state of a connection changes. A new one has been counted by enter.
func (a *connections) note(c net.Conn, now http.ConnState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy(c)
	switch now {
	case http.StateNew, http.StateIdle:
		if a.places == nil {
			a.places = make(map[net.Conn]*list.Element)
		}
		if !a.closed[c] {
			a.places[c] = a.idle.PushBack(c)
		}
	case http.StateClosed, http.StateHijacked:
		delete(a.closed, c)
		a.open--
		a.served.Done()
	}
}

// busy notes that a connection is not idle any more. The caller holds the lock.
func (a *connections) busy(c net.Conn) {
	if place := a.places[c]; place != nil {
		a.idle.Remove(place)
		delete(a.places, c)
	}
}

// wait returns when every connection has ended, and with it what it has asked for. The server must have been closed.
func (a *connections) wait() { a.served.Wait() }
