package ringserver

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// owners knows which process each registration belongs to and when it is gone.
//
// A registration ends when its process is gone, whichever of its threads made
// it, and when the last handle on the registration directory that this process
// opened is released: a forked child that inherited the handle keeps the
// parent's rings (usrbio.md 3.7 and 11, case 64). A process in a PID namespace
// that cannot be seen from here has no owner; its registrations last until they
// are unlinked.
type owners struct {
	reap  func(*entry)
	epoll int
	stop  int // eventfd

	mu      sync.Mutex
	byTgid  map[int]*owner
	byID    map[int32]*owner // as epoll reports them; numbers of processes are used again
	threads map[int]int      // tid -> tgid as last seen, verified at use
	handles map[uint64]*owner
	lastID  uint64
	stopped bool
}

// owner is one client process.
type owner struct {
	id    int32
	tgid  int
	pidfd int // -1 once closed
	gone  bool
	tids  []int // its keys in owners.threads
	// dirs counts open handles of the registration directory.
	dirs    int
	entries map[*entry]struct{}
}

func newOwners(reap func(*entry)) (*owners, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	o := &owners{
		reap: reap, epoll: epoll, stop: stop,
		byTgid: map[int]*owner{}, byID: map[int32]*owner{}, threads: map[int]int{}, handles: map[uint64]*owner{},
	}
	if err := o.epollAdd(stop, 0); err != nil {
		unix.Close(epoll)
		unix.Close(stop)
		return nil, err
	}
	return o, nil
}

// await has watch told when fd becomes readable; id 0 stands for the stop event.
func (o *owners) epollAdd(fd int, id int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: id}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(o.epoll, unix.EPOLL_CTL_ADD, fd, &ev))
}

// watch waits for processes to end until close.
func (o *owners) watch() {
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		unix.Close(o.epoll)
		unix.Close(o.stop)
		o.epoll, o.stop = -1, -1
	}()
	events := make([]unix.EpollEvent, 32)
	for {
		n, err := unix.EpollWait(o.epoll, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		for _, ev := range events[:n] {
			if ev.Fd == 0 {
				return
			}
			o.ended(ev.Fd)
		}
	}
}

// close ends watch. Owners' descriptors close with their last registration.
func (o *owners) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.stopped {
		o.stopped = true
		unix.Write(o.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// join makes e belong to the process of thread tid. ESRCH: that process is gone.
func (o *owners) join(tid uint32, e *entry) (*owner, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w, err := o.find(int(tid))
	if w != nil {
		w.entries[e] = struct{}{}
	}
	return w, err
}

// leave takes e from its owner; it is not reaped any more.
func (o *owners) leave(e *entry) {
	if e.owner == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(e.owner.entries, e)
	o.forgetIfIdle(e.owner)
}

func (o *owners) dirOpened(tid uint32) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lastID++
	if w, _ := o.find(int(tid)); w != nil {
		w.dirs++
		o.handles[o.lastID] = w
	}
	return o.lastID
}

func (o *owners) dirReleased(handle uint64) {
	o.mu.Lock()
	w := o.handles[handle]
	if w == nil {
		o.mu.Unlock()
		return
	}
	delete(o.handles, handle)
	w.dirs--
	orphans := w.orphans()
	o.forgetIfIdle(w)
	o.mu.Unlock()
	o.reapAll(orphans)
}

// ended notes that a process is gone.
func (o *owners) ended(id int32) {
	o.mu.Lock()
	w := o.byID[id]
	if w == nil {
		o.mu.Unlock()
		return
	}
	w.gone = true
	o.forget(w)
	orphans := w.orphans()
	o.mu.Unlock()
	o.reapAll(orphans)
}

// forget takes w out of the maps: its number may mean another process soon.
func (o *owners) forget(w *owner) {
	if o.byTgid[w.tgid] == w {
		delete(o.byTgid, w.tgid)
	}
	delete(o.byID, w.id)
	for _, tid := range w.tids {
		delete(o.threads, tid)
	}
	w.tids = nil
	if w.pidfd >= 0 {
		unix.Close(w.pidfd) // which also takes it out of the epoll set
		w.pidfd = -1
	}
}

// reapIfGone ends w's registrations if it has ended before they were complete.
func (o *owners) reapIfGone(w *owner) {
	if w == nil {
		return
	}
	o.mu.Lock()
	orphans := w.orphans()
	o.mu.Unlock()
	o.reapAll(orphans)
}

// left lists what is to be reaped: everything, once process and handles are gone.
func (w *owner) orphans() []*entry {
	if !w.gone || w.dirs > 0 {
		return nil
	}
	es := make([]*entry, 0, len(w.entries))
	for e := range w.entries {
		es = append(es, e)
	}
	return es
}

func (o *owners) reapAll(es []*entry) {
	for _, e := range es {
		o.reap(e)
	}
}

// retire forgets an owner that owns nothing.
func (o *owners) forgetIfIdle(w *owner) {
	if len(w.entries) == 0 && w.dirs == 0 && !w.gone {
		o.forget(w)
	}
}

// find returns the owner of thread tid's process, new if need be; nil for a
// thread that cannot be seen from here.
func (o *owners) find(tid int) (*owner, error) {
	if tid == 0 {
		return nil, nil
	}
	tgid, known := o.threads[tid]
	if !known || unix.Tgkill(tgid, tid, 0) == unix.ESRCH {
		var err error
		if tgid, err = threadGroup(tid); err != nil {
			return nil, syscall.ESRCH
		}
		known = false
	}
	w := o.byTgid[tgid]
	if w != nil && unix.PidfdSendSignal(w.pidfd, 0, nil, 0) == unix.ESRCH {
		w = nil // its end is about to be reported; the number is used again already
	}
	if w == nil {
		var err error
		if w, err = o.track(tgid); err != nil {
			return nil, err
		}
	}
	if !known {
		o.threads[tid] = tgid
		w.tids = append(w.tids, tid)
	}
	return w, nil
}

// adopt begins to watch a process.
func (o *owners) track(tgid int) (*owner, error) {
	pidfd, err := unix.PidfdOpen(tgid, 0)
	if err != nil {
		return nil, syscall.ESRCH
	}
	o.lastID++
	w := &owner{id: int32(o.lastID&math.MaxInt32) | 1, tgid: tgid, pidfd: pidfd, entries: map[*entry]struct{}{}}
	for o.byID[w.id] != nil {
		w.id += 2
	}
	if err := o.epollAdd(pidfd, w.id); err != nil {
		unix.Close(pidfd)
		return nil, syscall.ENOMEM
	}
	o.byTgid[tgid], o.byID[w.id] = w, w
	return w, nil
}

// threadGroup is the process a thread belongs to. The FUSE header carries the
// thread's id (3.7).
func threadGroup(tid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Tgid:"); ok {
			return strconv.Atoi(strings.TrimSpace(v))
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no Tgid", tid)
}
