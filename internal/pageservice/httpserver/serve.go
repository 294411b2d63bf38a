package httpserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// maxHeaderBytes bounds a request's head.
const maxHeaderBytes = 16 << 10

// Serve answers on the listeners until ctx ends; then it takes no more requests,
// finishes those it has, and returns when drain ends at the latest, whose function
// is called once ctx has ended. The listeners are closed in any case.
func (s *Server) Serve(ctx context.Context, listeners []*Listener, drain func() (context.Context, context.CancelFunc)) error {
	var open atomic.Int64
	servers := make([]*http.Server, len(listeners))
	failed := make(chan error, len(listeners))
	for i, l := range listeners {
		h := &http.Server{
			Handler:           s.Handler(l.Address.Namespace),
			ReadHeaderTimeout: s.limits.Header,
			ReadTimeout:       s.limits.Body,
			WriteTimeout:      s.limits.Write,
			IdleTimeout:       s.limits.Idle,
			MaxHeaderBytes:    maxHeaderBytes,
			ConnState:         limitConnections(&open, int64(s.limits.Connections)),
			ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		}
		servers[i] = h
		go func() { failed <- h.Serve(l) }()
	}
	var errs []error
	ended := 0
	select {
	case <-ctx.Done():
	case err := <-failed: // a listener broke
		errs = append(errs, err)
		ended++
	}
	limit, cancel := drain()
	defer cancel()
	var stopped sync.WaitGroup
	for _, h := range servers { // at once: none takes requests while another finishes
		stopped.Go(func() {
			if err := h.Shutdown(limit); err != nil {
				h.Close()
				s.log.Warn("clients of the page service were cut off", "err", err)
			}
		})
	}
	stopped.Wait()
	for ; ended < len(servers); ended++ {
		errs = append(errs, <-failed)
	}
	return errors.Join(onlyReal(errs)...)
}

// onlyReal leaves out that a server was told to stop.
func onlyReal(errs []error) (real []error) {
	for _, err := range errs {
		if !errors.Is(err, http.ErrServerClosed) {
			real = append(real, err)
		}
	}
	return real
}

// limitConnections closes connections beyond a number at once: each costs a
// descriptor and a goroutine, even if it never says a word.
func limitConnections(open *atomic.Int64, most int64) func(net.Conn, http.ConnState) {
	return func(c net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			if open.Add(1) > most {
				c.Close()
			}
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
}
