package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// holdback has no request begin while the process is replaced by another one, which has the listeners then. Who connects
// meanwhile waits for that one. A request on a connection that is open already ends with this process before anything of it was
// done, so its client may send it again.
type holdback struct {
	mu      sync.Mutex
	servers []*http.Server
	from    []*Listener
	active  int           // connections on which a request has begun
	held    int           // of these, those whose request waits
	shut    chan struct{} // closed when they go on; nil: none waits
	quiet   chan struct{} // closed when all active ones wait; nil: nobody wants to know
}

// HoldBack has requests wait that come from now on, and returns when those that came before are answered, or with an error when ctx
// ends before. The caller calls resume, also after an error, unless the process is replaced.
func (s *Server) HoldBack(ctx context.Context) (resume func(), err error) {
	b := &s.hold
	b.mu.Lock()
	if b.shut != nil {
		b.mu.Unlock()
		return func() {}, errors.New("page service: requests are held back already")
	}
	quiet := make(chan struct{})
	b.shut, b.quiet = make(chan struct{}), quiet
	b.look()
	servers, from := b.servers, b.from
	b.mu.Unlock()
	for _, l := range from {
		l.setDeadline(time.Now()) // Accept returns at once
	}
	for _, h := range servers {
		h.SetKeepAlivesEnabled(false) // closes those that are idle, so that their clients connect again
	}
	select {
	case <-quiet:
	case <-ctx.Done():
		b.mu.Lock()
		err = fmt.Errorf("page service: %d requests are not answered: %w", b.active-b.held, ctx.Err())
		b.mu.Unlock()
	}
	return b.resume, err
}

func (b *holdback) resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut == nil {
		return
	}
	for _, l := range b.from {
		l.setDeadline(time.Time{})
	}
	for _, h := range b.servers {
		h.SetKeepAlivesEnabled(true)
	}
	close(b.shut)
	b.shut, b.quiet = nil, nil
}

// look closes quiet when it is. The caller holds the lock.
func (b *holdback) look() {
	if b.quiet != nil && b.active <= b.held {
		close(b.quiet)
		b.quiet = nil
	}
}

// count notes that requests have begun, or ended, on connections.
func (b *holdback) count(more int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.active += more
	b.look()
}

// await returns when nothing is held back, or ctx ends.
func (b *holdback) await(ctx context.Context) {
	b.mu.Lock()
	shut := b.shut
	b.mu.Unlock()
	if shut == nil {
		return
	}
	select {
	case <-shut:
	case <-ctx.Done():
	}
}

// holds is h for requests that wait while they are held back.
func (b *holdback) holds(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		for b.shut != nil {
			if r.Context().Err() != nil { // nobody waits for an answer
				b.mu.Unlock()
				return
			}
			b.held++
			b.look()
			b.mu.Unlock()
			b.await(r.Context())
			b.mu.Lock()
			b.held--
		}
		b.mu.Unlock()
		h.ServeHTTP(w, r)
	})
}
