package web

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// connections bounds the open connections. Where there would be too many, the one that has been idle for longest goes: a client
// that keeps many open does not keep probes out.
type connections struct {
	mu     sync.Mutex
	open   int
	idle   list.List // of net.Conn, the longest idle first
	places map[net.Conn]*list.Element
	served sync.WaitGroup
}

// note is called by the server when the state of a connection changes.
func (a *connections) note(c net.Conn, now http.ConnState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if place := a.places[c]; place != nil {
		a.idle.Remove(place)
		delete(a.places, c)
	}
	switch now {
	case http.StateNew, http.StateIdle:
		if a.places == nil {
			a.places = make(map[net.Conn]*list.Element)
		}
		a.places[c] = a.idle.PushBack(c)
	case http.StateClosed, http.StateHijacked:
		a.open--
		a.served.Done()
	}
	if now == http.StateNew {
		a.served.Add(1)
		if a.open++; a.open > mostConnections {
			_ = a.idle.Front().Value.(net.Conn).Close() // the server learns of it
		}
	}
}

// wait returns when every connection has ended, and with it what it has asked for. The server must have been closed.
func (a *connections) wait() { a.served.Wait() }
