package fuseserver

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// openHandle is what a FUSE file handle stands for, one of the three, and the user that it
// is charged to.
type openHandle struct {
	uid     uint32
	file    *tree.Handle
	dir     *tree.Dir
	virtual *virtualDir
	gone    bool          // it was one of the three for a predecessor
	free    bool          // it is charged to nobody
	record  *handleRecord // what a successor is told; nil: there will be none
}

// check asserts that the handle is exactly one of the three.
func (o openHandle) check() {
	kinds := 0
	for _, is := range []bool{o.file != nil, o.dir != nil, o.virtual != nil, o.gone} {
		if is {
			kinds++
		}
	}
	invariants.Check(kinds == 1, "a handle is %d things", kinds)
}

// virtualDir is an open virtual directory.
type virtualDir struct {
	ino    uint64
	handle uint64 // from ControlDir.OpenDir
	caller cred.Caller

	mu      sync.Mutex
	entries []controldir.Entry // snapshot taken when a read last began at the start
}

// handles maps FUSE file handles to what is open.
type handles struct {
	mu   sync.RWMutex
	last uint64
	open map[uint64]openHandle
	log  *handleLog // nil: no successor is told
	// recalled are handles of a predecessor by the request that opened them, which comes again if that
	// was not answered.
	recalled map[uint64]uint64
	// exchanges are the last exchanges of two names that were done, or begun.
	exchanges []*handleRecord
}

func newHandles() *handles { return &handles{open: make(map[uint64]openHandle)} }

// add adds what a request has opened.
func (t *handles) add(unique uint64, o openHandle) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	o.check()
	t.last++
	if t.log != nil {
		if o.record == nil {
			o.record = &handleRecord{}
		}
		o.record.FH, o.record.Unique, o.record.UID = t.last, unique&^resentBit, o.uid
		if t.log.take(o.record) {
			t.log.append(o.record, t.records)
		} else {
			o.record = nil
		}
	}
	t.open[t.last] = o
	return t.last
}

// keep begins to tell a successor.
func (t *handles) keep(r *Recalled, lost func(error)) {
	if r == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = max(t.last, r.tree.Generation()<<handleShift)
	t.log = &handleLog{log: r.log, state: r.state, lost: lost}
	for fh, o := range t.open {
		if o.record != nil && !t.log.take(o.record) {
			o.record = nil
			t.open[fh] = o
		}
	}
	if err := t.log.rewrite(t.records); err != nil {
		t.log.failed = true
		lost(err)
	}
}

// records calls yield with what a successor must know.
func (t *handles) records(yield func(*handleRecord) bool) {
	for _, o := range t.open {
		if o.record != nil && !yield(o.record) {
			return
		}
	}
	for _, x := range t.exchanges {
		if !yield(x) {
			return
		}
	}
}

// mostExchanges is how many exchanges are remembered: more than are under way at a time.
const mostExchanges = 256

// exchange notes that a node is about to change places with another one. Done twice, that would be undone.
func (t *handles) exchange(unique, node uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.log == nil {
		return
	}
	t.last++
	x := &handleRecord{FH: t.last, Unique: unique &^ resentBit, Exchange: node}
	t.exchanges = append(t.exchanges, x)
	if over := len(t.exchanges) - mostExchanges; over > 0 {
		t.log.append(&handleRecord{FH: t.exchanges[0].FH, Closed: true}, t.records)
		t.exchanges = t.exchanges[over:]
	}
	t.log.append(x, t.records)
}

// exchanged returns the node of an exchange that a predecessor has begun; 0: none.
func (t *handles) exchanged(unique uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.exchanges {
		if x.Unique == unique&^resentBit {
			return x.Exchange
		}
	}
	return 0
}

// resent returns the handle of a predecessor that a request has opened, if it was not answered.
func (t *handles) resent(unique uint64) (fh uint64, o openHandle, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fh, ok = t.recalled[unique&^resentBit]; ok {
		o, ok = t.open[fh]
		delete(t.recalled, unique&^resentBit)
	}
	return fh, o, ok
}

func (t *handles) get(fh uint64) openHandle {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.open[fh]
}

// take removes a handle. It may be unknown if a predecessor has opened it.
func (t *handles) take(fh uint64) openHandle {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, known := t.open[fh]
	invariants.Check(known || t.log != nil, "handle %d is released and not open", fh)
	delete(t.open, fh)
	if !known {
		return openHandle{gone: true, free: true}
	}
	if o.record != nil {
		t.log.state.Return(o.record.UID, o.record.room)
		t.log.append(&handleRecord{FH: fh, Closed: true}, t.records)
	}
	return o
}

func (t *handles) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.open)
}

func (t *handles) all() []openHandle {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.open))
}

func (t *handles) drain() []openHandle {
	all := t.all()
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.open)
	return all
}

// release closes a handle in time; until then its user is charged for it.
func (fs *fileSystem) release(o openHandle) {
	fs.closing.add(o.uid, func() {
		fs.closeHandle(o)
		if !o.free {
			fs.files.Return(o.uid, 1)
		}
	})
}

// mayOpen takes one of the files that a user may have open, or returns an error. Who does
// not open it gives it back.
func (fs *fileSystem) mayOpen(uid uint32) fuse.Status {
	if fs.revocation.Load() != nil {
		return fuse.Status(unix.ENOTCONN)
	}
	if !fs.files.Take(uid, 1) {
		return fuse.Status(unix.EMFILE)
	}
	return fuse.OK
}

// mayRemove is mayOpen for a recursive removal. done gives back what it has taken.
func (fs *fileSystem) mayRemove(uid uint32) (done func(), st fuse.Status) {
	if !fs.files.Take(uid, tree.RemovalDescriptors) {
		return nil, fuse.Status(unix.EMFILE)
	}
	return func() { fs.files.Return(uid, tree.RemovalDescriptors) }, fuse.OK
}

func (fs *fileSystem) closeHandle(o openHandle) {
	switch {
	case o.file != nil:
		fs.passthrough.close(o.file.ID())
		o.file.Close()
	case o.dir != nil:
		o.dir.Close()
	case o.virtual != nil:
		fs.control.ReleaseDir(o.virtual.ino, o.virtual.handle)
	case o.record != nil && o.record.File != nil: // it is gone, and the kernel has it
		fs.passthrough.close(o.record.File.Node)
	}
}

// writeFlags are the open flags that 3FS refuses in read-only mode.
const writeFlags = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC | unix.O_APPEND

func (fs *fileSystem) openFile(proceed tree.Proceed, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if _, ok := fs.resentOpen(&in.InHeader, out); ok {
		return fuse.OK
	}
	if st := fs.mayOpen(in.Uid); !st.Ok() {
		return st
	}
	st := fs.open(proceed, in, out)
	if !st.Ok() {
		fs.files.Return(in.Uid, 1)
	}
	return st
}

func (fs *fileSystem) open(proceed tree.Proceed, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if wire.IsVirtual(in.NodeId) {
		return fuse.EPERM
	}
	if in.Flags&writeFlags != 0 && fs.readonly(&in.InHeader) {
		return fuse.EROFS
	}
	h, err := fs.tree.Open(in.NodeId, callerOf(&in.InHeader), int(in.Flags), proceed)
	if err != nil {
		return fs.nodeStatusOf(err)
	}
	if in.Mode&fuse.OPEN_KILL_SUIDGID != 0 {
		if err := h.ClearSetID(); err != nil {
			h.Close()
			return fs.statusOf(err)
		}
	}
	fs.opened(&in.InHeader, in.Flags, h, out)
	return fuse.OK
}

func (fs *fileSystem) opened(in *fuse.InHeader, flags uint32, h *tree.Handle, out *fuse.OpenOut) {
	fs.passthrough.open(in, flags, h, out)
	o := openHandle{uid: in.Uid, file: h}
	if fs.opts.State != nil {
		fs.tree.Uses(in.NodeId, in.Uid)
		state := h.State()
		o.record = &handleRecord{File: &state, Flags: out.OpenFlags, Backing: out.BackingID, Rights: fs.passthrough.rightsOf(h.ID())}
	}
	out.Fh = fs.handles.add(in.Unique, o)
}

func (fs *fileSystem) create(proceed tree.Proceed, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if st := fs.mayMake(&in.InHeader, name); !st.Ok() {
		return st
	}
	if st, ok := fs.resentCreate(in, name, out); ok {
		return st
	}
	if st := fs.mayOpen(in.Uid); !st.Ok() {
		return st
	}
	e, h, err := fs.tree.Create(in.NodeId, name, int(in.Flags), fs.tree.ModeOfNew(in.NodeId, in.Mode, in.Umask), callerOf(&in.InHeader), fs.settings.AttrTimeout(in.Uid), proceed)
	return fs.created(in, e, h, err, out)
}

// Tmpfile handles an open with O_TMPFILE.
func (fs *fileSystem) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	switch {
	case wire.IsVirtual(in.NodeId):
		return fuse.ENOTSUP
	case fs.readonly(&in.InHeader):
		return fuse.EROFS
	}
	if st, ok := fs.resentCreate(in, "", out); ok {
		return st
	}
	if st := fs.mayOpen(in.Uid); !st.Ok() {
		return st
	}
	e, h, err := fs.tree.CreateUnnamed(in.NodeId, int(in.Flags), fs.tree.ModeOfNew(in.NodeId, in.Mode, in.Umask), callerOf(&in.InHeader), fs.settings.AttrTimeout(in.Uid))
	return fs.created(in, e, h, err, out)
}

// created answers with a file that the tree has made and opened, or could not.
func (fs *fileSystem) created(in *fuse.CreateIn, e tree.Entry, h *tree.Handle, err error, out *fuse.CreateOut) fuse.Status {
	if err != nil {
		fs.files.Return(in.Uid, 1)
		return fs.statusOf(err)
	}
	fs.opened(&in.InHeader, in.Flags, h, &out.OpenOut)
	e.Keep = h.Keep(e.Keep)
	fs.entry(&out.EntryOut, e, in.Uid)
	return fuse.OK
}

// openFileOf returns an open file. Of one that is gone, as it was removed and only the daemon before had it open, its client hears ESTALE.
func (fs *fileSystem) openFileOf(fh uint64) (*tree.Handle, fuse.Status) {
	switch o := fs.handles.get(fh); {
	case o.file != nil:
		return o.file, fuse.OK
	case o.gone:
		return nil, fuse.Status(unix.ESTALE)
	}
	return nil, fuse.EBADF
}

func (fs *fileSystem) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	fs.late.release(in.Fh, func() { fs.release(fs.handles.take(in.Fh)) })
}

func (fs *fileSystem) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	h, st := fs.openFileOf(in.Fh)
	if h == nil {
		return nil, st
	}
	if in.ReadFlags&fuse.READ_LOCKOWNER == 0 {
		// For the kernel's page cache: a page of a private mapping.
		h.CachePages()
	}
	total, err := h.Read(buf, int64(in.Offset))
	if err != nil && total == 0 {
		return nil, fs.statusOf(err)
	}
	return fuse.ReadResultData(buf[:total]), fuse.OK
}

func (fs *fileSystem) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return fs.write(in, data, &tree.Waiting{Cancel: cancel})
}

func (fs *fileSystem) write(in *fuse.WriteIn, data []byte, wait *tree.Waiting) (uint32, fuse.Status) {
	h, st := fs.openFileOf(in.Fh)
	if h == nil {
		return 0, st
	}
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		if err := h.ClearSetID(); err != nil {
			return 0, fs.statusOf(err)
		}
	}
	// The offset of an append comes from attributes that may be stale; the backing file
	// knows its end.
	append := in.Flags&unix.O_APPEND != 0
	if append && fs.resent(&in.InHeader) && h.MayHaveAppended(data, int64(in.Offset)) {
		append = false
	}
	n, err := h.Write(data, int64(in.Offset), append, in.Uid, wait)
	return uint32(n), fs.statusOf(err)
}

// Fallocate handles fallocate(2). The kernel writes back and drops the pages that it has of
// the range, and asks for no mode that it could not keep coherent.
func (fs *fileSystem) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return fs.fallocate(in, &tree.Waiting{Cancel: cancel})
}

func (fs *fileSystem) fallocate(in *fuse.FallocateIn, wait *tree.Waiting) fuse.Status {
	h, st := fs.openFileOf(in.Fh)
	switch {
	case h == nil:
		return st
	case fs.readonly(&in.InHeader):
		return fuse.EROFS
	}
	err := h.Fallocate(in.Mode, int64(in.Offset), int64(in.Length), in.Uid, wait)
	if errors.Is(err, unix.ENOSYS) {
		err = unix.EOPNOTSUPP // for this file; the kernel would ask for no other one any more
	}
	return fs.statusOf(err)
}

func (fs *fileSystem) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	h, st := fs.openFileOf(in.Fh)
	if h == nil {
		return st
	}
	off, err := h.Seek(int64(in.Offset), int(in.Whence))
	out.Offset = uint64(off)
	return fs.statusOf(err)
}

// Flush handles close(2) of a client. A backing file system that reports write errors
// only on close reports them here to the client.
func (fs *fileSystem) Flush(_ <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	h := fs.handles.get(in.Fh).file
	if h == nil {
		return fuse.OK
	}
	if err := h.Publish(); err != nil {
		return fs.statusOf(err)
	}
	return fs.statusOf(h.Flush())
}

func (fs *fileSystem) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h, st := fs.openFileOf(in.Fh)
	if h == nil {
		return st
	}
	return fs.statusOf(h.Sync(in.FsyncFlags&1 != 0))
}
