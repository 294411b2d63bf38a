package tree

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Grant is what rings may do with a file because somebody has it open through the mount: requests name its inode number, and
// the user that has opened it may use it as it was opened. A successor of the daemon needs that before it serves rings, also
// where the mount, and the open files with it, have ended.
type Grant struct {
	Ino uint64 // as clients see it

	// The inode, by its identity, its handle if its file system gives one, and where it was.
	Dev, FileIno uint64
	Birth        int64
	HandleType   int32
	Handle       []byte
	Path         []byte // below the data directory

	UID, GID      uint32
	OneGroup      bool // only while the user is in group GID
	Access        int
	Reads, Writes bool // the rights that the user had
}

// Grants is told of files as they are opened and closed. Its methods may be called concurrently, and are called before the client learns
// of the open, and after the close.
type Grants interface {
	Granted(Grant) (id uint64)
	Ended(id uint64)
}

// tellGranted tells Options.Grants of a new handle.
func (t *Tree) tellGranted(h *Handle) {
	if t.grants == nil {
		return
	}
	n := h.file.of.node
	g := Grant{
		Ino: n.ino, Dev: n.key.dev, FileIno: n.key.ino, Birth: n.key.birth,
		UID: h.holder.uid, GID: h.holder.gid, OneGroup: h.holder.oneGroup, Access: h.access,
		Reads: h.grants[forReading], Writes: h.grants[forWriting],
	}
	if handle, _, err := unix.NameToHandleAt(h.file.fd, "", unix.AT_EMPTY_PATH); err == nil {
		g.HandleType, g.Handle = handle.Type(), handle.Bytes()
	}
	t.mu.RLock()
	g.Path = []byte(t.pathLocked(n.place))
	t.mu.RUnlock()
	h.granted = t.grants.Granted(g)
}

// Regrant makes a grant of a predecessor hold, until release is called. ESTALE: the file is not there any more, or has no name.
func (t *Tree) Regrant(g Grant) (release func(), err error) {
	rel, err := t.pathOfGrant(g)
	if err != nil {
		return nil, err
	}
	var ids []uint64 // of the directories, and the file
	forget := func() {
		for _, id := range ids {
			if owner, toClose := t.Forget(id, 1); toClose {
				t.CloseForgotten(owner)
			}
		}
	}
	at := uint64(RootID)
	for name := range strings.SplitSeq(rel, "/") {
		e, err := t.Lookup(at, name, g.UID, 0)
		if err != nil {
			forget()
			return nil, err
		}
		at = e.ID
		ids = append(ids, at)
	}
	n, err := t.node(at)
	if err == nil && (n.key != (identity{g.Dev, g.FileIno, g.Birth}) || n.ino != g.Ino || !n.regular()) {
		err = unix.ESTALE
	}
	var f *File
	if err == nil {
		f, err = t.openLocked(t.useOpen(n), g.Access, nil, g.UID)
	}
	if err != nil {
		forget()
		return nil, err
	}
	h := f.newHandle(holder{uid: g.UID, gid: g.GID, oneGroup: g.OneGroup}, g.Access, directions{g.Reads, g.Writes})
	return func() {
		h.Close()
		forget()
	}, nil
}

// pathOfGrant returns where the file of a grant is now, or was.
func (t *Tree) pathOfGrant(g Grant) (string, error) {
	if g.Access < 0 || g.Access > unix.O_RDWR {
		return "", unix.EINVAL
	}
	rel := string(g.Path)
	if now, ok := t.pathByHandle(g); ok {
		rel = now
	}
	if rel == "" || rel == "." {
		return "", unix.ESTALE
	}
	return rel, nil
}

// pathByHandle asks the kernel for the name that an inode has now.
func (t *Tree) pathByHandle(g Grant) (rel string, ok bool) {
	if g.Handle == nil {
		return "", false
	}
	dir, err := unix.Open(procPath(t.rootFD), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(dir)
	fd, err := unix.OpenByHandleAt(dir, unix.NewFileHandle(g.HandleType, g.Handle), unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	top, err := readlink(procPath(dir))
	if err != nil {
		return "", false
	}
	path, err := readlink(procPath(fd))
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(path, strings.TrimSuffix(top, "/")+"/")
}

func readlink(path string) (string, error) {
	b := make([]byte, 2*unix.PathMax)
	n, err := unix.Readlink(path, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}
