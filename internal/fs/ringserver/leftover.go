package ringserver

import (
	"context"
	"log/slog"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/quota"
)

// leftovers removes the objects of clients that have exited without doing so.
//
// It removes an object only if it is the one that was registered, belongs to the user that
// registered it, has a name that client libraries draw for one process, and nobody has it
// open or mapped. It acts with the user's rights and no capability, so it can remove
// nothing that the user could not.
type leftovers struct {
	log     *slog.Logger
	tidiers *tidiers
	places  *quota.Quota // in waiting, or being looked at
	wake    chan struct{}

	mu      sync.Mutex
	waiting []*leftover
	closed  bool
}

// leftover is an object to remove.
type leftover struct {
	objectID
	name   string
	shm    *devShm // that it is in, held
	client cred.Caller
	due    time.Time
	pause  time.Duration
}

// objectID identifies an object. Inode numbers of tmpfs may be used again.
type objectID struct {
	dev, ino uint64
	birth    unix.StatxTimestamp
}

const (
	// mostLeftovers bounds the objects that are remembered. The doctor finds others.
	mostLeftovers = 1 << 14
	// Another process may use the object for longer than the one that has registered it.
	// The daemon looks again after firstLook, each time later, until lastLook.
	firstLook = 10 * time.Millisecond
	lastLook  = 10 * time.Minute
	// lastLookElsewhere is lastLook for a container's /dev/shm, whose memory is not freed while the daemon has it open.
	lastLookElsewhere = 5 * time.Second
)

// removable reports whether an object is of use only to the process that made it, and to
// those that have it open. Other names may be known to programs that start later.
func removable(name string) bool {
	for _, prefix := range []string{"hf3fs-iov-", "kv3fs-mem-", "3FSClient_", "nixl_hf3fs.", "psm_"} {
		if strings.HasPrefix(name, prefix) {
			return !strings.HasPrefix(name, "kv3fs-mem-cache-") // the next process takes it over
		}
	}
	return false
}

func newLeftovers(log *slog.Logger, tidiers *tidiers) *leftovers {
	return &leftovers{log: log, tidiers: tidiers, places: quota.New(mostLeftovers), wake: make(chan struct{}, 1)}
}

// add has the object of a registration removed. Its process has exited.
func (l *leftovers) add(e *entry) {
	name := path.Base(e.Target)
	if e.object == (objectID{}) || !removable(name) || !l.places.Take(e.UID, 1) {
		return
	}
	l.put(&leftover{objectID: e.object, name: name, shm: e.shm.hold(), client: cred.Caller{UID: e.UID, GID: e.GID}, due: time.Now(), pause: firstLook})
}

func (l *leftovers) put(x *leftover) {
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.waiting = append(l.waiting, x)
	}
	l.mu.Unlock()
	if closed {
		x.shm.release()
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run removes objects until ctx ends.
func (l *leftovers) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
		}
		if next, some := l.look(time.Now()); some {
			timer.Reset(time.Until(next))
		}
	}
}

// close forgets what was not removed. It is called after run.
func (l *leftovers) close() {
	l.mu.Lock()
	all := l.waiting
	l.waiting, l.closed = nil, true
	l.mu.Unlock()
	for _, x := range all {
		x.shm.release()
	}
}

// look tries to remove what is due, and returns when something is next.
func (l *leftovers) look(now time.Time) (next time.Time, some bool) {
	l.mu.Lock()
	all := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	kept := all[:0]
	for _, x := range all {
		if !x.due.After(now) {
			if x.shm != nil && l.tidiers.do(x.client.UID, func() {
				if !l.ended(x, time.Now()) {
					l.put(x)
				}
			}) {
				continue
			}
			if x.shm != nil { // too much of its user's is held up
				x.due = now.Add(lastLookElsewhere)
			} else if l.ended(x, now) {
				continue
			}
		}
		if !some || x.due.Before(next) {
			next, some = x.due, true
		}
		kept = append(kept, x)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(kept, l.waiting...)
	return next, some
}

// ended looks at x, and reports whether nothing more is to be done for it; otherwise it says when to look again.
func (l *leftovers) ended(x *leftover, now time.Time) bool {
	last := lastLook
	if x.shm != nil {
		last = lastLookElsewhere
	}
	if x.settled(l.log) || x.pause > last {
		l.places.Return(x.client.UID, 1)
		x.shm.release()
		return true
	}
	x.due, x.pause = now.Add(x.pause), 2*x.pause
	return false
}

// settled removes the object if nobody uses it, and reports whether there is nothing left to
// do.
func (x *leftover) settled(log *slog.Logger) (done bool) {
	err := cred.RunAs(x.client, func() (err error) {
		done, err = x.remove()
		return err
	})
	if err != nil {
		log.Debug("object of a client that has exited not removed", "object", x.name, "uid", x.client.UID, "err", err)
		return true
	}
	return done
}

// remove is settled with the client's rights.
func (x *leftover) remove() (done bool, err error) {
	dir, err := x.shm.path()
	if err != nil {
		return false, err
	}
	defer unix.Close(dir)
	fd, err := regularIn(dir, x.name)
	switch err {
	case nil:
	case unix.ENOENT:
		return true, nil
	case unix.EAGAIN: // somebody has a lease on it
		return false, nil
	default:
		return false, err
	}
	defer unix.Close(fd) // ends the lease
	var st unix.Statx_t
	if got, err := identify(fd, &st); err != nil || got != x.objectID || st.Uid != x.client.UID || st.Nlink != 1 {
		return true, err
	}
	// Nobody can open the object while this lease lasts.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		if err == unix.EAGAIN {
			return false, nil
		}
		return false, err
	}
	var named unix.Stat_t
	if err := unix.Fstatat(dir, x.name, &named, unix.AT_SYMLINK_NOFOLLOW); err != nil || named.Ino != x.ino {
		return true, nil
	}
	return true, unix.Unlinkat(dir, x.name, 0)
}

// identify returns the identity of the object behind a descriptor.
func identify(fd int, st *unix.Statx_t) (objectID, error) {
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, st); err != nil {
		return objectID{}, err
	}
	x := objectID{dev: unix.Mkdev(st.Dev_major, st.Dev_minor), ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		x.birth = st.Btime
	}
	return x, nil
}
