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

// Options of Watch.
type Options struct {
	Dir string // for messages
	// Look uses the file system. It may hang: then nothing waits for it, and it is called again meanwhile. An error says that
	// the file system does not work; one that is NeedsRestart, that it never will for this process.
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
	waits atomic.Int64 // for looks that have not ended

	mu   sync.Mutex
	why  error // nil: it works
	sick time.Time
}

// NeedsRestart is the error of a file system that this process cannot use any more, although others may.
type NeedsRestart struct{ Err error }

func (e NeedsRestart) Error() string { return e.Err.Error() + ": restart the daemon" }
func (e NeedsRestart) Unwrap() error { return e.Err }

// Watch looks at a file system until End: every 5 s, every second while it does not work, and soon after a call has failed.
func Watch(o Options) *Store {
	s := &Store{opts: o, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	go s.run()
	return s
}

// End does not wait for a look that hangs.
func (s *Store) End() { close(s.quit) }

func (s *Store) run() {
	type answer struct {
		number int
		err    error
	}
	answers := make(chan answer)
	looks := newLooks(s.opts.Limit)
	var now time.Duration // for which this process has run
	for {
		pause := looks.pause(now)
		timer, began := time.NewTimer(pause), time.Now()
		select {
		case <-timer.C:
		case a := <-answers:
			looks.end(a.number, a.err)
		case <-s.wake:
			looks.doubted = true
		case <-s.quit:
			timer.Stop()
			return
		}
		timer.Stop()
		now += looks.ran(time.Since(began), pause)
		if now >= looks.due() {
			number := looks.begin(now)
			go func() {
				a := answer{number, s.opts.Look()}
				select {
				case answers <- a:
				case <-s.quit:
				}
			}()
		}
		s.waits.Store(int64(looks.waits(now)))
		s.found(looks.verdict(now))
	}
}

// found records what the looks say.
func (s *Store) found(err error, hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.why
	s.why = err
	s.hangs.Store(hangs)
	var restart NeedsRestart
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		if was == nil {
			s.sick = time.Now()
		}
		if errors.As(err, &restart) {
			s.opts.Log.Error("this daemon cannot use the data directory's file system any more: clients get EIO", "data", s.opts.Dir, "cause", restart.Err, "cure", "restart the daemon")
			return
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

// Waits returns how long the watch has waited for an answer of the file system; 0 where it waits for none.
func (s *Store) Waits() time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(s.waits.Load())
}

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

// Doubt has the watch look soon.
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
