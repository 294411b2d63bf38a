package usrbio

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Mount is a connection to the daemon behind one 3FS mount. Everything made
// through it lives at most as long as it does.
type Mount struct {
	path string
	desk desk
	dev  uint64 // st_dev of every file on this mount

	mu     sync.Mutex
	closed bool
	rings  map[*Ring]struct{}
	files  map[*File]struct{}
	iovs   map[*Iov]struct{}
	submit map[wire.Priority]*shm.NamedSem
}

// Open connects to the daemon of the mount that holds path. ErrNotMounted means
// that path is not on a 3FS, ErrDaemonGone that its daemon is no more.
func Open(path string) (*Mount, error) {
	mp, err := FindMount(path)
	if err != nil {
		return nil, err
	}
	dir, err := openIovsDir(mp)
	if err != nil {
		return nil, explain("open "+mp, err)
	}
	m := newMount(mp, dir)
	m.dev = dir.dev
	return m, nil
}

func newMount(path string, d desk) *Mount {
	return &Mount{
		path:   path,
		desk:   d,
		rings:  map[*Ring]struct{}{},
		files:  map[*File]struct{}{},
		iovs:   map[*Iov]struct{}{},
		submit: map[wire.Priority]*shm.NamedSem{},
	}
}

// Path is the mount point.
func (m *Mount) Path() string { return m.path }

// Close closes everything made through m: rings first, so that nobody waits on
// them any more, then files and iovs, whose memory must not be touched
// afterwards. Requests in flight are not waited for. Closing twice is harmless.
//
// A daemon that hangs is waited for once, for half a minute: ETIMEDOUT. What is
// registered with it is then made up for when it answers, or when this process
// ends.
func (m *Mount) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	rings, files, iovs := m.rings, m.files, m.iovs
	m.rings, m.files, m.iovs = nil, nil, nil
	m.mu.Unlock()

	var errs []error
	for r := range rings {
		errs = append(errs, r.Close())
	}
	if len(files) > 0 {
		errs = append(errs, m.desk.bound(func() error { // close(2) asks the daemon
			var errs []error
			for f := range files {
				errs = append(errs, f.Close())
			}
			return errors.Join(errs...)
		}))
	}
	for v := range iovs {
		errs = append(errs, v.Close())
	}
	for _, s := range m.submit { // no ring is left to post to it
		s.Close(false)
	}
	return errors.Join(append(errs, m.desk.close())...)
}

// adopt enters something new in its set, unless m has been closed meanwhile.
func adopt[T comparable](m *Mount, set *map[T]struct{}, x T) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("usrbio: mount %s: %w", m.path, os.ErrClosed)
	}
	(*set)[x] = struct{}{}
	return nil
}

// disown is adopt's reverse.
func disown[T comparable](m *Mount, set *map[T]struct{}, x T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(*set, x)
}

// submitSem opens the semaphore that wakes the daemon for rings of a priority.
// It stays open until m is closed: rings come and go.
func (m *Mount) submitSem(p wire.Priority) (*shm.NamedSem, error) {
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
	target, err := m.desk.readlink(link)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", link, err)
	}
	name, ok := strings.CutPrefix(target, shm.Dir+"/sem.")
	if !ok || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%s points to %s, no semaphore: %w", link, target, syscall.EIO)
	}
	if s, err = shm.OpenSem(name); err != nil {
		return nil, fmt.Errorf("%s is not in this %s, which must be the daemon's: %w", link, shm.Dir, err)
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
