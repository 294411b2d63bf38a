package integrity

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// watch hears from the kernel (fanotify) which files that are in use other processes open or change. It needs
// no privilege. Changes show in a file's times as well, but not those between the beginning and the end of a write
// of the daemon. A process opens a file before it can write to it or map it, and the kernel queues that before the open
// returns; so does truncate(2), before the inode is unlocked. So what others did before drain is called has been noted when it returns, with one
// exception: writes through a descriptor whose opening did not count, see File.Passing.
type watch struct {
	fd int // negative: the kernel tells nothing
	me int32

	mu    sync.Mutex
	buf   []byte
	files map[string]*File // by handle
}

const (
	watched    = unix.FAN_OPEN | unix.FAN_MODIFY
	watchBytes = 32 << 10
	// mostEvent is more than an event takes.
	mostEvent = 512
)

// newWatch returns a watch, which hears nothing if hears is not set or the kernel does not allow it.
func newWatch(hears bool) *watch {
	w := &watch{fd: -1, me: int32(os.Getpid()), files: make(map[string]*File)}
	if !hears {
		return w
	}
	const how = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_FID | unix.FAN_NONBLOCK | unix.FAN_CLOEXEC
	fd, err := unix.FanotifyInit(how|unix.FAN_UNLIMITED_QUEUE|unix.FAN_UNLIMITED_MARKS, 0)
	if errors.Is(err, unix.EPERM) {
		fd, err = unix.FanotifyInit(how, 0)
	}
	if err == nil {
		w.fd, w.buf = fd, make([]byte, watchBytes)
	}
	return w
}

func (w *watch) close() {
	if w.fd >= 0 {
		unix.Close(w.fd)
	}
}

// add begins to watch the file of fd, and reports whether it does. f.mu is held.
func (w *watch) add(f *File, fd int) bool {
	if w.fd < 0 {
		return false
	}
	handle, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return false
	}
	name := handleName(handle.Type(), handle.Bytes())
	w.mu.Lock()
	w.files[name] = f
	w.mu.Unlock()
	// What is evictable does not hold the inode in memory, should remove not come to it.
	if err := unix.FanotifyMark(w.fd, unix.FAN_MARK_ADD|unix.FAN_MARK_EVICTABLE, watched, fd, ""); err != nil {
		w.mu.Lock()
		delete(w.files, name)
		w.mu.Unlock()
		return false
	}
	f.handle = name
	return true
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
	f.handle, f.harmless = "", nil
}

// drain notes what has happened up to now.
func (w *watch) drain() {
	if w.fd < 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
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
		case pid == w.me:
		default:
			if f := w.files[handleOf(event)]; f != nil {
				f.noteLocked(mask, pid)
			}
		}
	}
}

// noteLocked notes what another process has done. watch.mu is held.
func (f *File) noteLocked(mask uint64, pid int32) {
	switch _, harmless := f.harmless[pid]; {
	case mask&unix.FAN_MODIFY != 0:
		f.modified.Store(true)
		f.others.Add(1)
	case !harmless:
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

// processOf returns the process that a thread is one of.
func processOf(thread uint32) (pid int32, ok bool) {
	if thread == 0 {
		return 0, false // of another PID namespace
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return 0, false
	}
	_, b, ok = bytes.Cut(b, []byte("\nTgid:"))
	b, _, _ = bytes.Cut(b, []byte("\n"))
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 32)
	return int32(n), ok && err == nil
}

// Passed says that the kernel is about to open the file for a thread, which can use that without the
// daemon: to read, or, from Passing to PassingEnds, to write. Call it before the kernel does so.
func (f *File) Passed(thread uint32) {
	if f == nil {
		return
	}
	pid, ok := processOf(thread)
	if !ok {
		return // its opening counts as another's
	}
	w := f.store.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.harmless == nil {
		f.harmless = make(map[int32]struct{})
	}
	f.harmless[pid] = struct{}{}
}

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
