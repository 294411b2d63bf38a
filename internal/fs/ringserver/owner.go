package ringserver

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/invariants"
)

// owners records which process each registration belongs to and notices when that
// process exits.
//
// A registration ends when its process has exited, whichever of its threads made it,
// and the last handle that the process opened on the registration directory is
// released: a forked child that inherited the handle keeps the parent's rings
// (usrbio.md 3.7 and 11, case 64). A process in a PID namespace that the daemon
// cannot see has no owner: see unseen.
//
// Each process takes a descriptor, and each handle some memory, so both are bounded for
// each user.
type owners struct {
	reap      func(*entry)
	unseen    *unseen // the registrations without an owner
	legacy    *legacy
	epoll     int
	stopEvent int          // eventfd
	processes *quota.Quota // those in byID
	opened    *quota.Quota // those in handles

	mu      sync.Mutex
	byTgid  map[int]*owner
	byID    map[int32]*owner // by the id that epoll reports; not the PID, which is reused
	threads map[int]int      // tid -> tgid as last seen, verified at use
	handles map[uint64]dirHandle
	dead    map[keptProcess]*owner // with handles, found at the start
	lastID  uint64
	closed  []*owner // that there were when the server was closed
}

// dirHandle is an open handle of the registration directory.
type dirHandle struct {
	owner *owner // nil: a process that cannot be seen
	uid   uint32 // whose share it takes
}

// mostHandles bounds the open handles of the registration directory. A client keeps one.
const mostHandles = 1 << 16

// mostThreads bounds the threads of a process that are remembered. The others are looked
// up at each use.
const mostThreads = 64

// owner is one client process.
type owner struct {
	id    int32
	tgid  int
	start uint64 // see startOf
	name  string // see commandOf
	pidfd int    // -1 once closed
	uid   uint32 // whose share it takes: the user that was seen first
	gone  bool   // the process has exited
	tids  []int  // its keys in owners.threads
	// dirs counts open handles of the registration directory.
	dirs    int
	entries map[*entry]struct{}
	shms    []*devShm // whose submit links it has read: held until it has exited
	traffic processTraffic
}

// mostShms bounds the /dev/shm that are held for a process. It has one, unless it changes its namespace.
const mostShms = 16

func newOwners(reap func(*entry), unseen *unseen, maxProcesses int) (*owners, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	stopEvent, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	o := &owners{
		reap: reap, unseen: unseen, epoll: epoll, stopEvent: stopEvent,
		processes: quota.New(int64(maxProcesses)), opened: quota.New(mostHandles),
		// Handles are numbered so that no other daemon of this kernel has used the same numbers.
		lastID: uint64(time.Now().UnixNano()),
		byTgid: map[int]*owner{}, byID: map[int32]*owner{}, threads: map[int]int{}, handles: map[uint64]dirHandle{},
	}
	if err := o.epollAdd(stopEvent, 0); err != nil {
		unix.Close(epoll)
		unix.Close(stopEvent)
		return nil, err
	}
	return o, nil
}

// epollAdd makes watch report id when fd becomes readable; id 0 is the stop event.
func (o *owners) epollAdd(fd int, id int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: id}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(o.epoll, unix.EPOLL_CTL_ADD, fd, &ev))
}

// watch reaps the registrations of processes as they exit, until stop is called.
func (o *owners) watch() {
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

// stop ends watch.
func (o *owners) stop() { _, _ = unix.Write(o.stopEvent, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// close releases what watch uses. Call it after watch has returned, or if it never ran.
// It closes the descriptors of owners that still have handles.
func (o *owners) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.byID {
		o.closed = append(o.closed, w)
		o.forget(w)
	}
	unix.Close(o.epoll)
	unix.Close(o.stopEvent)
	o.epoll, o.stopEvent = -1, -1
}

// unlock ends a change that began with mu.Lock.
func (o *owners) unlock() {
	if invariants.Enabled {
		o.checkInvariants()
	}
	o.mu.Unlock()
}

// join makes e belong to the process of thread tid. ESRCH: that process has exited.
// EMFILE: the user's processes, or all, are too many.
func (o *owners) join(uid, tid uint32, e *entry) (*owner, error) {
	o.mu.Lock()
	defer o.unlock()
	w, err := o.find(uid, int(tid))
	switch {
	case w != nil:
		w.entries[e] = struct{}{}
	case err == nil:
		o.unseen.add(e)
	}
	return w, err
}

// leave removes e from its owner, so that it is not reaped any more.
func (o *owners) leave(e *entry) {
	if e.owner == nil {
		o.unseen.remove(e)
		return
	}
	o.mu.Lock()
	defer o.unlock()
	delete(e.owner.entries, e)
	o.forgetIfIdle(e.owner)
}

// dirOpened returns a new handle of the process of thread tid. EMFILE: the user has too
// many, or too many processes.
func (o *owners) dirOpened(uid, tid uint32) (uint64, error) {
	o.mu.Lock()
	defer o.unlock()
	w, err := o.find(uid, int(tid))
	if err == syscall.EMFILE {
		return 0, err
	}
	o.lastID++
	if err != nil { // nothing depends on the handle
		return o.lastID, nil
	}
	if !o.opened.Take(uid, 1) {
		o.forgetIfIdle(w)
		return 0, syscall.EMFILE
	}
	if w != nil {
		w.dirs++
	}
	o.handles[o.lastID] = dirHandle{w, uid}
	o.legacy.keepHandle(o.lastID, uid, w)
	return o.lastID, nil
}

func (o *owners) dirReleased(handle uint64) {
	o.mu.Lock()
	h, ok := o.handles[handle]
	if !ok {
		o.mu.Unlock()
		return
	}
	delete(o.handles, handle)
	o.legacy.forgetHandle(handle)
	o.opened.Return(h.uid, 1)
	w := h.owner
	if w == nil {
		o.unlock()
		o.unseen.lookSoon()
		return
	}
	w.dirs--
	orphans := w.orphans()
	o.forgetIfIdle(w)
	o.unlock()
	o.reapAll(orphans)
}

// ended records that a process has exited.
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
	shms := w.shms
	w.shms = nil
	o.unlock()
	o.reapAll(orphans)
	w.releaseAll(shms)
}

// reads holds x for the process of thread tid until that has exited. EMFILE: the process has read links in too many, or
// there are too many processes. ESRCH: it has exited.
func (o *owners) reads(uid, tid uint32, x *devShm) error {
	o.mu.Lock()
	defer o.unlock()
	w, err := o.find(uid, int(tid))
	if err != nil {
		return err
	}
	return w.reads(x)
}

func (w *owner) reads(x *devShm) error {
	switch {
	case slices.Contains(w.shms, x):
		return nil
	case len(w.shms) == mostShms:
		return syscall.EMFILE
	}
	w.shms = append(w.shms, x)
	x.hold().addReader(keptProcess{TGID: w.tgid, Start: w.start})
	return nil
}

// releaseAll ends what reads has begun, for a process that has exited.
func (w *owner) releaseAll(shms []*devShm) {
	for _, x := range shms {
		x.removeReader(keptProcess{TGID: w.tgid, Start: w.start})
		x.release()
	}
}

// releaseAll is it for all processes that close has forgotten.
func (o *owners) releaseAll() {
	for _, w := range o.closed {
		w.releaseAll(w.shms)
	}
}

// dirsBut returns the handles that are not among those given, whose numbers no new one gets.
func (o *owners) dirsBut(open []uint64) (others []uint64) {
	o.mu.Lock()
	defer o.unlock()
	for _, h := range open {
		o.lastID = max(o.lastID, h)
	}
	for h := range o.handles {
		if !slices.Contains(open, h) {
			others = append(others, h)
		}
	}
	return others
}

// forget removes w from the maps: its PID may soon be reused.
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
		unix.Close(w.pidfd) // also removes it from the epoll set
		w.pidfd = -1
		o.processes.Return(w.uid, 1)
	}
}

// reapIfGone ends w's registrations if its process exited before they were complete.
func (o *owners) reapIfGone(w *owner) {
	if w == nil {
		return
	}
	o.mu.Lock()
	orphans := w.orphans()
	o.mu.Unlock()
	o.reapAll(orphans)
}

// orphans returns the registrations to reap: all of w's once its process has exited and
// its handles are released.
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

// forgetIfIdle stops watching a process that owns nothing any more.
func (o *owners) forgetIfIdle(w *owner) {
	if w != nil && len(w.entries) == 0 && w.dirs == 0 && len(w.shms) == 0 && !w.gone {
		o.forget(w)
	}
}

// find returns the owner of thread tid's process, a new one if need be, or nil and no error
// for a thread in a PID namespace that the daemon cannot see. A new one takes uid's share.
func (o *owners) find(uid uint32, tid int) (*owner, error) {
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
		w = nil // epoll is about to report its exit, and the PID has been reused already
	}
	if w == nil {
		var err error
		if w, err = o.track(uid, tgid); err != nil {
			return nil, err
		}
	}
	if !known {
		if len(w.tids) == mostThreads {
			delete(o.threads, w.tids[0])
			w.tids = w.tids[1:]
		}
		o.threads[tid] = tgid
		w.tids = append(w.tids, tid)
	}
	return w, nil
}

// track starts to watch a process.
func (o *owners) track(uid uint32, tgid int) (*owner, error) {
	if !o.processes.Take(uid, 1) {
		return nil, syscall.EMFILE
	}
	pidfd, err := unix.PidfdOpen(tgid, 0)
	if err != nil {
		o.processes.Return(uid, 1)
		return nil, syscall.ESRCH
	}
	o.lastID++
	w := &owner{id: int32(o.lastID&math.MaxInt32) | 1, tgid: tgid, start: startOf(tgid), name: commandOf(tgid), pidfd: pidfd, uid: uid, entries: map[*entry]struct{}{}, traffic: processTraffic{pid: tgid}}
	for o.byID[w.id] != nil {
		w.id += 2
	}
	if err := o.epollAdd(pidfd, w.id); err != nil {
		unix.Close(pidfd)
		o.processes.Return(uid, 1)
		return nil, syscall.ENOMEM
	}
	o.byTgid[tgid], o.byID[w.id] = w, w
	return w, nil
}

// startOf returns when a process was started, in clock ticks since the boot; 0: it is not there. A
// process that has the number of another one was started later.
func startOf(tgid int) uint64 {
	const field = 22 // proc_pid_stat(5)
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tgid) + "/stat")
	if err != nil {
		return 0
	}
	// The second field is the command, in parentheses, and may contain anything.
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) <= field-3 {
		return 0
	}
	ticks, _ := strconv.ParseUint(fields[field-3], 10, 64)
	return ticks
}

// threadGroup returns the process that a thread belongs to. The FUSE header has only
// the thread's id (3.7).
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
	return 0, fmt.Errorf("read /proc/%d/status: it has no Tgid", tid)
}
