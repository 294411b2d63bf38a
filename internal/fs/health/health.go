// Package health says whether the file system under the data directory works, and keeps its troubles from looking like the
// daemon's own: a client that gets ENOTCONN from a mount takes the daemon for dead.
package health

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/logpace"
)

const (
	lookEvery     = 5 * time.Second
	lookEverySick = time.Second
)

// Options of Watch.
type Options struct {
	Dir string // for messages
	// Look uses the file system. It may hang; then nothing waits for it. An error says that it does not work.
	Look func() error
	// Limit is how long Look may take.
	Limit time.Duration
	Log   *slog.Logger
}

// Store is the file system under a data directory. Its methods may be called concurrently, and on nil, which always works.
type Store struct {
	opts Options
	pace logpace.Pace
	wake chan struct{}
	quit chan struct{}

	hangs atomic.Bool

	mu   sync.Mutex
	why  error // nil: it works
	sick time.Time
}

// Watch looks at a file system until End: every 5 s, every second while it does not work, and when a call has failed.
func Watch(o Options) *Store {
	s := &Store{opts: o, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	go s.run()
	return s
}

// End does not wait for a look that hangs.
func (s *Store) End() { close(s.quit) }

func (s *Store) run() {
	for {
		period := lookEvery
		if s.Err() != nil {
			period = lookEverySick
		}
		next := time.NewTimer(period)
		select {
		case <-next.C:
		case <-s.wake:
			next.Stop()
		case <-s.quit:
			next.Stop()
			return
		}
		late := time.AfterFunc(s.opts.Limit, func() { s.found(fmt.Errorf("it has not answered for %v", s.opts.Limit), true) })
		err := s.opts.Look()
		late.Stop()
		select {
		case <-s.quit:
			return
		default:
			s.found(err, false)
		}
	}
}

// found records what a look has found.
func (s *Store) found(err error, hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.why
	s.why = err
	s.hangs.Store(hangs)
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		if was == nil {
			s.sick = time.Now()
		}
		s.opts.Log.Error("the data directory's file system does not work: clients get EIO or wait for it; the daemon goes on by itself once it does",
			"data", s.opts.Dir, "cause", err, "cure", "look at its servers and at the network")
	case err == nil && was != nil:
		s.opts.Log.Info("the data directory's file system works again", "data", s.opts.Dir, "after", time.Since(s.sick).Round(time.Millisecond))
	}
}

// Err returns what is wrong with the file system; nil while it works.
func (s *Store) Err() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		return nil
	}
	return fmt.Errorf("the file system of the data directory %s does not work: %w", s.opts.Dir, s.why)
}

// Hangs reports whether the file system does not answer.
func (s *Store) Hangs() bool { return s != nil && s.hangs.Load() }

// Answer returns what a client is told of an error of the file system: EIO in place of one that speaks of a lost
// connection, which the client would think is the one to the daemon. The log has the true one.
func (s *Store) Answer(err error) error {
	if !Lost(err) {
		return err
	}
	if s != nil {
		if more, now := s.pace.Log(err.Error()); now {
			s.opts.Log.Warn("a call into the data directory's file system failed: the client gets EIO", "data", s.opts.Dir, "err", err, "more", more)
		}
		s.Doubt()
	}
	return syscall.EIO
}

// Doubt has the watch look now.
func (s *Store) Doubt() {
	if s == nil {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default: // it will look
	}
}

// Lost reports whether an error says that a file system has lost its servers, or one of its descriptors with them.
func Lost(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.ENOTCONN, syscall.ESHUTDOWN, syscall.EBADFD, syscall.ENODEV, syscall.EPIPE, syscall.ETIMEDOUT,
		syscall.ECONNABORTED, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTDOWN, syscall.EHOSTUNREACH,
		syscall.ENETDOWN, syscall.ENETUNREACH, syscall.ENETRESET, syscall.ENONET, syscall.ENOLINK, syscall.ECOMM,
		syscall.EPROTO, syscall.EREMOTEIO:
		return true
	}
	return false
}
