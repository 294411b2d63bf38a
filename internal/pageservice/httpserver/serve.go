package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
)

// maxHeaderBytes bounds the head of a request.
const maxHeaderBytes = 16 << 10

// Serve serves the listeners until ctx ends. Then it accepts no more requests, finishes
// those that have arrived, and returns. It calls drain when ctx has ended; the context
// that drain returns bounds how long finishing may take. Serve always closes the
// listeners.
func (s *Server) Serve(ctx context.Context, listeners []*Listener, drain func() (context.Context, context.CancelFunc)) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	awake, sleep := context.WithCancel(context.WithoutCancel(ctx))
	defer sleep()
	s.stops.begin()
	watching.Go(func() { s.stops.watch(awake) })
	open := newConnections(s.limits.Connections, s.hold.count)
	servers := make([]*http.Server, len(listeners))
	failed := make(chan error, len(listeners))
	for i, l := range listeners {
		h := &http.Server{
			Handler:           l.Handler,
			ReadHeaderTimeout: s.limits.Header,
			ReadTimeout:       s.limits.Body,
			WriteTimeout:      s.limits.Write,
			IdleTimeout:       s.limits.Idle,
			MaxHeaderBytes:    maxHeaderBytes,
			ConnState:         open.noteState,
			ConnContext: func(ctx context.Context, c net.Conn) context.Context {
				return context.WithValue(ctx, clientKey{}, within(c).client)
			},
			ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		}
		if h.Handler == nil {
			h.Handler = s.Handler(l.Address.Namespace)
		}
		h.Handler = s.hold.holds(h.Handler)
		servers[i] = h
		var from net.Listener = limited{l, open, &s.hold}
		if l.TLS != nil {
			from = tls.NewListener(from, l.TLS)
		}
		go func() { failed <- h.Serve(from) }()
	}
	s.hold.mu.Lock()
	s.hold.servers, s.hold.from = servers, listeners
	s.hold.mu.Unlock()
	var errs []error
	ended := 0
	select {
	case <-ctx.Done():
	case err := <-failed: // a listener broke
		errs = append(errs, err)
		ended++
	}
	s.hold.resume()
	limit, cancel := drain()
	defer cancel()
	var stopped sync.WaitGroup
	for _, h := range servers { // concurrently, so that none accepts requests while another finishes
		stopped.Go(func() {
			if err := h.Shutdown(limit); err != nil {
				_ = h.Close() // Shutdown has failed already
				s.log.Warn("cut off clients of the page service", "err", err)
			}
		})
	}
	stopped.Wait()
	for ; ended < len(servers); ended++ {
		errs = append(errs, <-failed)
	}
	return errors.Join(onlyReal(errs)...)
}

// onlyReal drops the errors that only say that a server was told to stop.
func onlyReal(errs []error) (real []error) {
	for _, err := range errs {
		if !errors.Is(err, http.ErrServerClosed) {
			real = append(real, err)
		}
	}
	return real
}
