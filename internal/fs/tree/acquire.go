package tree

import (
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// Acquire returns the file with inode number ino, as clients see it, for one ring
// request of c or a batch of them. The caller releases it when the request is complete.
//
// c may use the file in a direction in which the same uid has it open through the mount,
// if the uid had that right when it opened the file. Otherwise the kernel decides: the
// file is opened as c. The super-user may do anything. Errors: EBADF when the kernel does
// not know ino (never looked up, or forgotten) or it is not a regular file; EACCES when c
// may not; EIO while KeepOut refuses the file; others from open(2).
func (t *Tree) Acquire(ino uint64, c cred.Caller, write bool) (*File, error) {
	n, ok := t.byIno.get(ino)
	if !ok || !n.regular() {
		return nil, unix.EBADF
	}
	if t.keptOut.has(n.id) {
		return nil, unix.EIO
	}
	dir := forReading
	if write {
		dir = forWriting
	}
	f, err := t.acquire(n, c, dir)
	if err == nil {
		f.of.rings.Add(1)
		f.tellUse()
	}
	if !write {
		return f, err
	}
	if err == nil && !c.Root() && f.of.plainUntil.Load() < t.now() {
		if err := f.makePlain(); err != nil {
			return nil, err
		}
	}
	return f, err
}

// plainNs is how long set-id bits that were set in the data directory, behind our back,
// may survive ring writes to a file that is in use.
const plainNs = 100e6

// makePlain clears set-id bits, as the kernel does when an unprivileged client
// writes. It releases f when it fails.
func (f *File) makePlain() error {
	// Set the mark first: a change of the mode from now on clears it.
	f.of.plainUntil.Store(f.of.tree.now() + plainNs)
	if err := f.again(func() error { return clearSetID(f.fd) }); err != nil {
		f.of.plainUntil.Store(0)
		f.Release()
		return err
	}
	return nil
}

func (t *Tree) acquire(n *node, c cred.Caller, dir direction) (*File, error) {
	of := t.useOpen(n)
	free := c.Root() || of.grantedLocked(c, dir)
	rights := t.rights.Load()
	if !free {
		if said, known := of.verdicts[verdictKey{c, dir}]; known && said.rights == rights {
			if said.err != nil {
				of.endLocked()
				return nil, said.err
			}
			free = true
		}
	}
	if free {
		if f := of.coveringLocked(dir); f != nil {
			of.useLocked(f)
			of.mu.Unlock()
			return f, nil
		}
		return t.openLocked(of, accessFor(dir), nil, c.UID)
	}
	epoch := of.epoch
	f, err := t.openLocked(of, accessFor(dir), &c, c.UID)
	if err == unix.EPERM {
		err = unix.EACCES
	}
	if err == nil || err == unix.EACCES {
		of.noteVerdict(verdictKey{c, dir}, verdict{err, rights}, epoch)
	}
	return f, err
}

// tellUse tells Options.Usage that rings use the file.
func (f *File) tellUse() {
	of := f.of
	if !of.tree.counts(of.node.key) {
		return
	}
	of.mu.Lock()
	first := !of.told
	of.told = true
	of.mu.Unlock()
	if first {
		of.tree.useBegins(of.node, f.fd)
	}
}

// noteVerdict remembers the kernel's decision while the file stays open through the
// mount. For a file that is not, the kernel decides every time.
func (of *openFile) noteVerdict(k verdictKey, said verdict, epoch int) {
	const most = 256 // for processes that come and go while the file stays open
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.dead || of.handles == 0 || of.epoch != epoch {
		return
	}
	if of.verdicts == nil || len(of.verdicts) >= most {
		of.verdicts = make(map[verdictKey]verdict)
	}
	of.verdicts[k] = said
}
