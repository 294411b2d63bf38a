package usrbio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Mount is a connection to the daemon behind one 3FS mount. Everything made
// through it lives at most as long as it does.
type Mount struct {
	path      string
	registrar registrar
	dev       uint64 // st_dev of every file on this mount

	mu     sync.Mutex
	closed bool
	rings  map[*Ring]struct{}
	files  map[*File]struct{}
	iovs   map[*Iov]struct{}
	submit map[wire.Priority]*shm.NamedSem

	closing once
}

// Open connects to the daemon of the mount that holds path. ErrNotMounted means
// that path is not on a 3FS, ErrDaemonGone that the daemon has stopped. If the
// mount hangs, the error is that of FindMount.
func Open(ctx context.Context, path string) (*Mount, error) {
	mp, err := FindMount(ctx, path)
	if err != nil {
		return nil, err
	}
	dir, err := openIovsDir(ctx, mp)
	if err != nil {
		return nil, explain("open "+mp, err)
	}
	m := newMount(mp, dir)
	m.dev = dir.dev
	return m, nil
}

func newMount(path string, r registrar) *Mount {
	return &Mount{
		path:      path,
		registrar: r,
		rings:     map[*Ring]struct{}{},
		files:     map[*File]struct{}{},
		iovs:      map[*Iov]struct{}{},
		submit:    map[wire.Priority]*shm.NamedSem{},
	}
}

// Path returns the mount point.
func (m *Mount) Path() string { return m.path }

// Probe asks the daemon whether it is there. The error is ErrDaemonGone if it stopped,
// even if another one has mounted over the same place, and ctx.Err() or, after 30 seconds,
// ETIMEDOUT if it does not answer.
func (m *Mount) Probe(ctx context.Context) error {
	if _, err := m.registrar.readlink(ctx, "submit-ios"); err != nil {
		return explain("probe "+m.path, err)
	}
	return nil
}

// Close closes everything made through m: rings first, so that no goroutine waits
// on them any more, then files, then iovs, whose memory must not be touched
// afterwards. It does not wait for requests in flight. Closing twice is harmless.
//
// What this process holds is released in any case. ctx bounds only the wait for
// the daemon, which lasts at most 30 seconds in all (ETIMEDOUT). A registration
// whose removal the daemon has not confirmed by then is removed when the daemon
// answers or when this process ends.
func (m *Mount) Close(ctx context.Context) error {
	return m.closing.do(ctx, func() error { return m.close(ctx) })
}

func (m *Mount) close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	rings, files, iovs := m.rings, m.files, m.iovs
	m.rings, m.files, m.iovs = nil, nil, nil
	m.mu.Unlock()

	var errs []error
	for r := range rings {
		errs = append(errs, r.Close(ctx))
	}
	for f := range files {
		errs = append(errs, f.Close(ctx))
	}
	for v := range iovs {
		errs = append(errs, v.Close(ctx))
	}
	for _, s := range m.submit { // no ring is left to post to it
		s.Close(false)
	}
	return errors.Join(append(errs, m.registrar.close(ctx))...)
}

// adopt adds x to its set, unless m has been closed meanwhile.
func adopt[T comparable](m *Mount, set *map[T]struct{}, x T) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("usrbio: mount %s: %w", m.path, os.ErrClosed)
	}
	if invariants.Enabled {
		_, known := (*set)[x]
		invariants.Check(!known, "mount %s: %v is added twice", m.path, x)
	}
	(*set)[x] = struct{}{}
	return nil
}

// disown undoes adopt.
func disown[T comparable](m *Mount, set *map[T]struct{}, x T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(*set, x)
}

// submitSem opens the semaphore that wakes the daemon for rings of a priority.
// It stays open until m is closed, because rings come and go.
func (m *Mount) submitSem(ctx context.Context, p wire.Priority) (*shm.NamedSem, error) {
	link := map[wire.Priority]string{wire.High: "submit-ios.ph", wire.Normal: "submit-ios", wire.Low: "submit-ios.pl"}[p]
	if link == "" {
		return nil, fmt.Errorf("no priority %d: %w", p, syscall.EINVAL)
	}
	m.mu.Lock()
	s := m.submit[p]
	m.mu.Unlock()
	if s != nil {
		return s, nil
	}
	target, err := m.registrar.readlink(ctx, link)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", link, err)
	}
	name, ok := strings.CutPrefix(target, shm.Dir+"/sem.")
	if !ok || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%s points to %s, which is not a semaphore: %w", link, target, syscall.EIO)
	}
	if s, err = shm.OpenSem(name); err != nil {
		return nil, fmt.Errorf("%s is not in this %s, which the daemon cannot reach (its log says why): %w", link, shm.Dir, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch other := m.submit[p]; {
	case m.closed:
		s.Close(false)
		return nil, os.ErrClosed
	case other != nil:
		s.Close(false)
		return other, nil
	}
	m.submit[p] = s
	return s, nil
}
