package integrity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// watch hears from the kernel (fanotify) which files that are in use other processes open or change. It needs
// no privilege. Changes show in a file's times as well, but not those between the beginning and the end of a write
// of the daemon. A process opens a file before it can write to it or map it, and the kernel queues that before the open
// returns; so does truncate(2), before the inode is unlocked. So what others did before drain is called has been noted when it returns, with one
// exception: writes through a descriptor whose opening did not count, see File.Passing.
type watch struct {
	fd      int // negative: the kernel tells nothing
	why     error
	me      int32
	threads bool // events name threads, not processes
	reading atomic.Int32

	mu    sync.Mutex
	buf   []byte
	files map[string]*File // by handle
	own   map[int32]bool   // threads of this process
}

const (
	watched    = unix.FAN_OPEN | unix.FAN_MODIFY
	watchBytes = 32 << 10
	// mostEvent is more than an event takes.
	mostEvent = 512
	// drainPeriod is how often events are read while nobody asks for them. The kernel keeps some 16,000; if there are
	// more, anything may have happened to any file.
	drainPeriod = 100 * time.Millisecond
)

// newWatch returns a watch, which hears nothing if hears is not set or the kernel does not allow it.
func newWatch(hears bool) *watch {
	w := &watch{fd: -1, me: int32(os.Getpid()), files: make(map[string]*File), own: make(map[int32]bool)}
	if !hears {
		return w
	}
	const how = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_FID | unix.FAN_NONBLOCK | unix.FAN_CLOEXEC
	fd, err := unix.FanotifyInit(how|unix.FAN_REPORT_TID|unix.FAN_UNLIMITED_MARKS, 0)
	w.threads = err == nil
	if errors.Is(err, unix.EPERM) {
		// Without privilege there is no passthrough, so nobody wants to know threads.
		fd, err = unix.FanotifyInit(how, 0)
	}
	if w.why = err; err == nil {
		w.fd, w.buf = fd, make([]byte, watchBytes)
	}
	return w
}

// run reads events now and then until ctx ends, so that they do not pile up in the kernel.
func (w *watch) run(ctx context.Context) {
	if w.fd < 0 {
		return
	}
	tick := time.NewTicker(drainPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.drain()
		w.forgetThreads()
	}
}

func (w *watch) close() {
	if w.fd >= 0 {
		unix.Close(w.fd)
	}
}

// add begins to watch the file of fd. f.mu is held.
func (w *watch) add(f *File, fd int) error {
	if w.fd < 0 {
		return w.why
	}
	handle, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	name := handleName(handle.Type(), handle.Bytes())
	w.mu.Lock()
	w.files[name] = f
	w.mu.Unlock()
	if err := w.mark(fd); err != nil {
		w.mu.Lock()
		delete(w.files, name)
		w.mu.Unlock()
		return err
	}
	f.handle = name
	return nil
}

// mark adds a mark to the inode of fd. One that is evictable does not hold it in memory, should remove not come to it;
// kernels before 5.19 have none.
func (w *watch) mark(fd int) error {
	err := unix.FanotifyMark(w.fd, unix.FAN_MARK_ADD|unix.FAN_MARK_EVICTABLE, watched, fd, "")
	if err == unix.EINVAL {
		err = unix.FanotifyMark(w.fd, unix.FAN_MARK_ADD, watched, fd, "")
	}
	return err
}

// watches returns how many files are watched.
func (w *watch) watches() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.files)
}

// remove ends what add began. fd is one of the file.
func (w *watch) remove(f *File, fd int) {
	if f.handle == "" {
		return
	}
	_ = unix.FanotifyMark(w.fd, unix.FAN_MARK_REMOVE, watched, fd, "") // what is told of it later is about no file
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.files[f.handle] == f {
		delete(w.files, f.handle)
	}
	f.handle, f.passed = "", nil
}

// drain notes what has happened up to now.
func (w *watch) drain() {
	if w.fd < 0 {
		return
	}
	// Whoever is reading may have events that are not noted yet.
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}, 0); n == 0 && err == nil && w.reading.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading.Add(1)
	defer w.reading.Add(-1)
	for {
		n, err := unix.Read(w.fd, w.buf)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return
		case err != nil:
			w.lostLocked()
			return
		}
		w.noteLocked(w.buf[:n])
		if n < len(w.buf)-mostEvent { // there was no more
			return
		}
	}
}

// lostLocked notes that anything may have happened to any file.
func (w *watch) lostLocked() {
	for _, f := range w.files {
		f.others.Add(1)
		f.modified.Store(true)
	}
}

// The kernel's fanotify_event_metadata, and fanotify_event_info_fid behind it.
const (
	metadataBytes = unix.FAN_EVENT_METADATA_LEN
	infoBytes     = 4 + 8 + 8 // up to the handle's bytes
)

func (w *watch) noteLocked(b []byte) {
	for len(b) >= metadataBytes {
		size, mask, pid := int(order.Uint32(b)), order.Uint64(b[8:]), int32(order.Uint32(b[20:]))
		if size < metadataBytes || size > len(b) {
			w.lostLocked()
			return
		}
		event := b[:size]
		b = b[size:]
		switch {
		case mask&unix.FAN_Q_OVERFLOW != 0:
			w.lostLocked()
		default:
			if f := w.files[handleOf(event)]; f != nil && !w.isOwnLocked(pid) {
				f.noteLocked(mask, pid)
			}
		}
	}
}

// isOwnLocked reports whether an event was this process's.
func (w *watch) isOwnLocked(id int32) bool {
	if id == w.me || !w.threads {
		return id == w.me
	}
	if !w.own[id] && unix.Access(fmt.Sprintf("/proc/self/task/%d", id), unix.F_OK) == nil {
		w.own[id] = true
	}
	return w.own[id]
}

// forgetThreads forgets which threads are this process's: their numbers may be others' later, though not soon.
func (w *watch) forgetThreads() {
	w.mu.Lock()
	clear(w.own)
	w.mu.Unlock()
}

// noteLocked notes what another thread has done. watch.mu is held.
func (f *File) noteLocked(mask uint64, thread int32) {
	at, passed := f.passed[thread]
	if mask&unix.FAN_OPEN != 0 && passed {
		delete(f.passed, thread)
		passed = time.Since(at) <= passedTime
	}
	switch {
	case mask&unix.FAN_MODIFY != 0:
		f.modified.Store(true)
		f.others.Add(1)
	case !passed:
		f.others.Add(1)
	}
}

func handleName(kind int32, b []byte) string { return strconv.Itoa(int(kind)) + ":" + string(b) }

// handleOf returns the handle that an event names.
func handleOf(event []byte) string {
	info := event[metadataBytes:]
	if len(info) < infoBytes || info[0] != unix.FAN_EVENT_INFO_TYPE_FID {
		return ""
	}
	n, kind := int(order.Uint32(info[12:])), int32(order.Uint32(info[16:]))
	if n > len(info)-infoBytes {
		return ""
	}
	return handleName(kind, info[infoBytes:][:n])
}

// Passed says that the kernel is about to open the file for a thread, which can use that without the
// daemon: to read, or, from Passing to PassingEnds, to write. Call it before the kernel does so. The next opening of the
// file by that thread does not count; where that is of another PID namespace, it does.
func (f *File) Passed(thread uint32) {
	if f == nil || thread == 0 || !f.store.watch.threads {
		return
	}
	w := f.store.watch
	w.drain() // what the thread opened before counts
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if len(f.passed) >= manyPassed {
		maps.DeleteFunc(f.passed, func(_ int32, at time.Time) bool { return now.Sub(at) > passedTime })
	}
	if f.passed == nil {
		f.passed = make(map[int32]time.Time)
	}
	f.passed[int32(thread)] = now
}

const (
	// passedTime is how long after Passed the kernel's opening is told at most; a client that is stopped in between is
	// taken for another. Some never come: the opening failed.
	passedTime = 10 * time.Second
	manyPassed = 256
)

// Passing says that a client can write to the file without the daemon, but neither map it nor leave a write under
// way, until PassingEnds. The kernel tells of such a write a moment after its bytes are there.
func (f *File) Passing() {
	if f != nil {
		f.passing.Add(1)
	}
}

// PassingEnds ends what Passing began: all that the client wrote so is in the file, and the kernel has told of it.
func (f *File) PassingEnds() {
	if f != nil {
		f.passing.Add(-1)
	}
}

// Unseen says that a client can write to the file without anybody being told, until nobody has it open or
// mapped for writing.
func (f *File) Unseen() {
	if f == nil {
		return
	}
	f.others.Add(1)
	f.mayBeMapped()
}
