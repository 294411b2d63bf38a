package ringserver

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// gapSeconds is how long a client whose daemon has ended waits for another one before it gives its rings up. An engine that
// has lost its rings has to be restarted, which takes minutes, so a minute more is cheap; and one that nobody will
// serve again must not hang for ever.
const gapSeconds = 60

// promise says in a ring how long its client should wait for a successor of this daemon. It uses a system call, since the
// client may have shrunk the object.
func (r *ring) promise(seconds uint32) error {
	_, err := r.m.WriteAt(binary.LittleEndian.AppendUint32(nil, seconds), r.layout.GapOff())
	return err
}

// endPromise has the ring's client wait for no successor.
func (r *ring) endPromise() {
	r.mu.Lock()
	if r.closed {
		r.unlock()
		return
	}
	r.refs++
	r.unlock()
	_ = r.promise(0) // what its client has shrunk is its own loss
	r.mu.Lock()
	r.unref()
	r.unlock()
}

// adopted counts what a daemon has found of its predecessor.
type adopted struct{ iovs, rings, requests, ended, lost int }

// adopt takes over what a predecessor has left: first semaphores and handles, then the registrations whose owners
// live, in their order. What cannot be taken over costs its client only. It is called before anything is served.
func (s *Server) adopt() error {
	if err := s.adoptSemaphores(); err != nil {
		return err
	}
	held, err := s.adoptHandles()
	if err != nil {
		return err
	}
	names, err := s.legacy.dir.Names(registrationsDir)
	if err != nil {
		return err
	}
	type found struct {
		id   uint64
		kept *keptRegistration
		link wire.Link
	}
	var all []found
	var n adopted
	for _, name := range names {
		id, err := strconv.ParseUint(name, 10, 64)
		if err == nil {
			s.lastID.Store(max(s.lastID.Load(), id))
		}
		version, text, err := s.legacy.dir.Read(registrationsDir + "/" + name)
		f := found{id: id}
		if err == nil {
			f.kept, f.link, err = decodeRegistration(version, text)
		}
		if err != nil {
			s.log.Warn("a registration of the last daemon was given up", "err", err)
			_ = s.legacy.dir.Remove(registrationsDir + "/" + name)
			n.lost++
			continue
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.kept.Order, b.kept.Order) })
	for _, f := range all {
		switch requests, err := s.readopt(f.id, f.kept, f.link, held); {
		case errors.Is(err, errOwnerGone):
			n.ended++
		case err != nil:
			n.lost++
			s.log.Warn("a registration of the last daemon was given up: its client has to make it again", "name", string(f.kept.Name), "uid", f.kept.UID, "err", err)
		case f.link.Ring:
			n.rings++
			n.requests += requests
		default:
			n.iovs++
		}
	}
	s.removeStrayJournals()
	s.owners.endAdoption()
	if n != (adopted{}) {
		s.log.Info("took over what the last daemon has left", "iovs", n.iovs, "rings", n.rings, "requests", n.requests, "ended", n.ended, "lost", n.lost)
	}
	return nil
}

// inherited counts the registrations of each user that a predecessor has left.
type inherited struct {
	mu     sync.Mutex
	byUser map[uint32]int
}

func (i *inherited) begin(uid uint32) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.byUser == nil {
		i.byUser = map[uint32]int{}
	}
	i.byUser[uid]++
}

// end undoes begin, and reports whether that was the last one.
func (i *inherited) end(uid uint32) (last bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.byUser[uid]--
	if last = i.byUser[uid] == 0; last {
		delete(i.byUser, uid)
	}
	return last
}

// Inherited reports whether a user has registrations that a predecessor has left.
func (s *Server) Inherited(uid uint32) bool {
	s.inherited.mu.Lock()
	defer s.inherited.mu.Unlock()
	return s.inherited.byUser[uid] > 0
}

// errOwnerGone says that a registration's process has exited since.
var errOwnerGone = errors.New("its process has exited")

// readopt takes over one registration, and returns how many requests of it are in flight. After an error it is forgotten.
func (s *Server) readopt(id uint64, k *keptRegistration, link wire.Link, held map[keptProcess]bool) (requests int, err error) {
	e := &entry{
		Registration: controldir.Registration{Name: string(k.Name), Target: string(k.Target), UID: k.UID, GID: k.GID},
		link:         link, id: id, bytes: k.Bytes, handleType: k.Object.HandleType, handle: k.Object.Handle,
		object: objectID{dev: k.Object.Dev, ino: k.Object.Ino, birth: unix.StatxTimestamp{Sec: k.Object.BirthSec, Nsec: k.Object.BirthNsec}},
	}
	c := cred.Caller{UID: k.UID, GID: k.GID, PID: k.PID}
	if k.GroupsKnown {
		c = c.WithTheseGroups(k.Groups)
	}
	defer func() {
		if err != nil {
			s.legacy.forget(id)
		}
	}()
	if !s.legacy.charge(registrationFile(id), k.UID) {
		return 0, errNoRoom
	}
	outlived := k.Owner != nil && held[*k.Owner]
	if e.owner, err = s.owners.rejoin(k.UID, k.Owner, outlived && !s.opts.SameMount, e); err != nil {
		if errors.Is(err, errOwnerGone) {
			s.leftovers.add(e)
		}
		return 0, err
	}
	undo := true
	defer func() {
		if undo {
			s.owners.leave(e)
			e.unmap()
		}
	}()
	if e.shm, err = s.shms.again(k); err != nil {
		return 0, err
	}
	fd, err := reopen(e)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if requests, err = s.rebuild(e, c, fd); err != nil {
		return 0, err
	}
	if e.ring != nil {
		s.countFor(e)
		if e.ring.broken == nil {
			s.poller(link.Priority).add(e.ring)
		}
	}
	if err := s.table.readd(e, k.Index, k.Order); err != nil {
		if e.ring != nil {
			s.poller(link.Priority).remove(e.ring)
		}
		return 0, fmt.Errorf("its place: %w", err)
	}
	undo, e.inherited = false, true
	s.inherited.begin(e.UID)
	s.owners.reapIfGone(e.owner)
	return requests, nil
}

// reopen opens the object of a kept registration, if it is the same one and has not shrunk. By then it mostly has no name, so
// it is found by its handle.
func reopen(e *entry) (fd int, err error) {
	const flags = unix.O_RDWR | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dir, err := e.shm.directory()
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", shm.Dir, err)
	}
	defer unix.Close(dir)
	fd, err = -1, unix.ESTALE
	if e.handle != nil {
		fd, err = unix.OpenByHandleAt(dir, unix.NewFileHandle(e.handleType, e.handle), flags)
	}
	if err == unix.EPERM || e.handle == nil { // without CAP_DAC_READ_SEARCH
		fd, err = regularIn(dir, path.Base(e.Target))
	}
	if err != nil {
		return -1, fmt.Errorf("its object in %s cannot be opened: %w", shm.Dir, err)
	}
	if err := e.isSame(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// isSame returns an error unless fd is the object that e was registered with, in all its length.
func (e *entry) isSame(fd int) error {
	var st unix.Statx_t
	is, err := identify(fd, &st)
	switch {
	case err != nil:
		return fmt.Errorf("its object: %w", err)
	case is != e.object || st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("its object was replaced by another one")
	case int64(st.Size) < e.bytes:
		return fmt.Errorf("its object was shrunk from %d to %d bytes", e.bytes, st.Size)
	}
	return nil
}

// rebuild is build for an object that a predecessor has served. It initialises nothing in a client's memory.
func (s *Server) rebuild(e *entry, c cred.Caller, fd int) (requests int, err error) {
	var layout wire.Layout
	if e.link.Ring {
		ok := false
		if layout, ok = wire.LayoutOf(e.bytes); !ok || int(e.link.IODepth) > layout.Entries() || layout.Entries() > wire.MostEntries {
			return 0, fmt.Errorf("%d bytes are no ring of depth %d: %w", e.bytes, e.link.IODepth, restart.ErrDamaged)
		}
	}
	m, err := mapObject(fd, e.bytes, s.mappedBytes, e.UID)
	if err != nil {
		return 0, fmt.Errorf("map its object: %w", err)
	}
	if !e.link.Ring {
		e.iov = newIov(m, e.link.BlockBytes)
		return 0, nil
	}
	j, all, err := openJournal(s.legacy.dir.Path(journalFile(e.id)), layout, s.legacy.dir, e.UID)
	if err != nil {
		m.Unmap()
		return 0, fmt.Errorf("its journal: %w", err)
	}
	sqeTail, cqeHead := j.markers(layout)
	e.ring = newRing(s, e.link, c, layout, m, sqeTail, cqeHead)
	e.ring.journal, e.ring.shm = j, e.shm
	return len(all), e.ring.takeUp(all)
}

// takeUp goes on with the requests that were in flight. The markers in the ring, which the client could change, are set to
// what the journal says, and a waiter is woken once, since the last post may be missing.
func (r *ring) takeUp(all []unfinished) error {
	if r.journal.broken() {
		r.broken = errors.New("its client had broken the protocol")
		return nil
	}
	var markers [8]byte
	binary.LittleEndian.PutUint32(markers[:], uint32(r.sqeTail))
	binary.LittleEndian.PutUint32(markers[4:], uint32(r.cqeHead))
	_, err := r.m.WriteAt(markers[:], wire.OffSqeTail)
	if err == nil {
		err = r.promise(gapSeconds)
	}
	if err == nil {
		err = shm.Guard(r.sem.Post)
	}
	if err != nil {
		return fmt.Errorf("its memory: %w", err)
	}
	r.mu.Lock()
	r.group = r.journal.group(r.layout.Entries())
	now := r.server.clock.now()
	for _, u := range all {
		q := r.newRequest()
		q.index, q.userdata, q.args, q.badIndex, q.slot = u.index, u.userdata, u.args, u.badIndex, u.slot
		q.admitted, q.lay, q.waitsAt = now, now, now
		r.inflight.push(q)
		r.enqueue(q)
	}
	r.freeSlots = int32(len(all))
	r.backlog.Store(len(all) > 0)
	if len(all) > 0 {
		r.oldest.Store(now)
	}
	r.mu.Unlock()
	return nil
}

// removeStrayJournals removes the journals of rings that were not acknowledged, or are given up.
func (s *Server) removeStrayJournals() {
	names, _ := s.legacy.dir.Names(journalsDir)
	known := map[string]bool{}
	for _, e := range s.table.all() {
		known[strconv.FormatUint(e.id, 10)] = true
	}
	for _, name := range names {
		if !known[name] {
			_ = s.legacy.dir.Remove(journalsDir + "/" + name)
		}
	}
}

// adoptHandles takes over the open handles of the directory of registrations, if the mount goes on. It returns the processes
// that had some.
func (s *Server) adoptHandles() (held map[keptProcess]bool, err error) {
	names, err := s.legacy.dir.Names(handlesDir)
	if err != nil {
		return nil, err
	}
	held = map[keptProcess]bool{}
	for _, name := range names {
		n, h, err := s.readHandle(name)
		if err == nil && h.Owner != nil {
			held[*h.Owner] = true
		}
		if err == nil && s.opts.SameMount {
			if err = errNoRoom; s.legacy.charge(handleFile(n), h.UID) {
				err = s.owners.reopen(n, h)
			}
		} else if err == nil { // nobody will say that it is closed
			s.legacy.forgetHandle(n)
		}
		if err != nil {
			s.log.Warn("a handle of the directory of registrations was given up", "handle", name, "err", err)
			s.legacy.remove(handlesDir + "/" + name)
		}
	}
	return held, nil
}

func (s *Server) readHandle(name string) (n uint64, h keptHandle, err error) {
	if n, err = strconv.ParseUint(name, 10, 64); err != nil {
		return 0, h, err
	}
	version, text, err := s.legacy.dir.Read(handlesDir + "/" + name)
	if err == nil {
		h, err = decodeHandle(version, text)
	}
	return n, h, err
}

func decodeHandle(version uint32, text []byte) (h keptHandle, err error) {
	if version != keptVersion {
		return h, fmt.Errorf("version %d: %w", version, restart.ErrDamaged)
	}
	if err = strictly(text, &h); err == nil && h.Owner != nil && h.Owner.TGID <= 0 {
		err = fmt.Errorf("process %d: %w", h.Owner.TGID, restart.ErrDamaged)
	}
	return h, err
}

// rejoin makes e belong to the process that it belonged to, if that lives. errOwnerGone: it does not, unless e stays:
// then somebody else may use it, and it ends when nobody does. EMFILE: as for join.
func (o *owners) rejoin(uid uint32, k *keptProcess, stays bool, e *entry) (*owner, error) {
	o.mu.Lock()
	defer o.unlock()
	if k == nil {
		o.unseen.add(e)
		return nil, nil
	}
	w, err := o.refind(uid, *k)
	switch {
	case err == nil:
		w.entries[e] = struct{}{}
	case errors.Is(err, errOwnerGone) && stays:
		o.unseen.inherit(e)
		err = nil
	}
	return w, err
}

// refind returns the owner of a kept process: its start is compared after its pidfd was opened, so the number is not another
// process's by now. A process that has exited and still has handles is found among the dead.
func (o *owners) refind(uid uint32, k keptProcess) (*owner, error) {
	if w := o.dead[k]; w != nil {
		return w, nil
	}
	w := o.byTgid[k.TGID]
	if w == nil {
		var err error
		if w, err = o.track(uid, k.TGID); errors.Is(err, syscall.ESRCH) {
			return nil, errOwnerGone
		} else if err != nil {
			return nil, err
		}
	}
	if k.Start == 0 || w.start != k.Start || unix.PidfdSendSignal(w.pidfd, 0, nil, 0) == unix.ESRCH {
		o.forgetIfIdle(w)
		return nil, errOwnerGone
	}
	return w, nil
}

// endAdoption forgets what is needed to take over what a predecessor has left.
func (o *owners) endAdoption() {
	o.mu.Lock()
	defer o.unlock()
	o.dead = nil
}

// reopen takes over a handle of the directory of registrations.
func (o *owners) reopen(n uint64, h keptHandle) error {
	o.mu.Lock()
	defer o.unlock()
	var w *owner
	if h.Owner != nil {
		var err error
		if w, err = o.refind(h.UID, *h.Owner); errors.Is(err, errOwnerGone) {
			// A child that inherited the handle keeps the registrations.
			w = &owner{id: 0, tgid: h.Owner.TGID, start: h.Owner.Start, pidfd: -1, uid: h.UID, gone: true, entries: map[*entry]struct{}{}, traffic: processTraffic{pid: h.Owner.TGID}}
			if o.dead == nil {
				o.dead = map[keptProcess]*owner{}
			}
			o.dead[*h.Owner] = w
		} else if err != nil {
			return err
		}
	}
	if !o.opened.Take(h.UID, 1) {
		o.forgetIfIdle(w)
		return syscall.EMFILE
	}
	if w != nil {
		w.dirs++
	}
	o.handles[n] = dirHandle{w, h.UID}
	o.lastID = max(o.lastID, n)
	return nil
}

// adoptSemaphores goes on with the submit semaphores that clients have mapped.
func (s *Server) adoptSemaphores() error {
	dir := s.legacy.dir
	version, text, err := dir.Read(runFile)
	run := ""
	if err == nil {
		run, err = decodeRun(version, text)
	}
	if err != nil { // there is none, or it is damaged: the clients' posts come to nothing, and their requests are found by looking
		if dir.Prior() {
			s.log.Warn("the submit semaphores of the last daemon were given up", "err", err)
		}
		return dir.Write(runFile, keptVersion, []byte(s.submit.run))
	}
	s.submit.run = run
	names, err := dir.Names(semaphoresDir)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, name := range names {
		if isElsewhere(name) {
			s.adoptSemaphoresElsewhere(name, run)
			continue
		}
		uid, err := strconv.ParseUint(name, 10, 32)
		var sems [3]string
		if err == nil {
			if version, text, err = dir.Read(semaphoresDir + "/" + name); err == nil {
				sems, err = decodeSemaphores(version, text, run)
			}
		}
		if err == nil && !s.legacy.charge(semaphoresFile(semsKey{uid: uint32(uid)}), uint32(uid)) {
			err = errNoRoom
		}
		if err == nil {
			err = s.submit.adopt(uint32(uid), sems)
		}
		if err != nil {
			s.log.Warn("a user's submit semaphores were given up: its requests are found some 50 ms late until its clients open new rings", "user", name, "err", err)
			s.legacy.remove(semaphoresDir + "/" + name)
			continue
		}
		for _, name := range sems {
			kept["sem."+name] = true
		}
	}
	removeSemaphores(s.submit.namePrefix(), func(object string) bool { return kept[object] })
	return nil
}

// adopt goes on with the semaphores of a user.
func (s *submitSems) adopt(uid uint32, names [3]string) error {
	s.mu.Lock()
	defer s.unlock()
	if s.sets >= s.maxUsers && uid != 0 {
		return syscall.EMFILE
	}
	var sems [3]*submitSem
	for i, name := range names {
		sem, err := shm.AdoptSem(name, uid)
		if err != nil {
			for _, opened := range sems[:i] {
				opened.Close(false)
			}
			return err
		}
		sems[i] = &submitSem{NamedSem: sem, uid: uid}
	}
	s.user(semsKey{uid: uid}).sems = sems
	s.sets++
	return nil
}

func (h keptHandle) encode() ([]byte, error) { return json.Marshal(h) }
