package tree

import (
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/integrity"
)

// Checksums are kept of regular files on the data directory's own device. Each write of the daemon
// to such a file is bracketed by its integrity.File; what the kernel or others write shows in the file's times.

// sums returns the checksums of an open file, from its first use that could need them; nil if none are kept.
func (f *File) sums(created bool) *integrity.File {
	of := f.of
	if of.tree.sums == nil || of.node.key.dev != of.tree.root.key.dev || !of.node.regular() {
		return nil
	}
	if s := of.sums.Load(); s != nil {
		return s
	}
	s := of.tree.sums.Acquire(f.fd, created)
	if s != nil && !of.sums.CompareAndSwap(nil, s) {
		of.tree.sums.Release(s, f.fd)
	}
	return of.sums.Load()
}

// Sums returns the checksums of the file, or nil, which is valid, if none are kept.
func (f *File) Sums() *integrity.File { return f.sums(false) }

// endSums says that no descriptor of the file will be used any more. fd is open.
func (of *openFile) endSums(fd int) {
	s := of.sums.Load()
	if s == nil {
		return
	}
	if st, err := statFD(fd); err == nil && st.Nlink == 0 {
		of.tree.sums.Removed(st.Ino)
	}
	of.tree.sums.Release(s, fd)
}

// change sets attributes of an inode of which fd is a descriptor. Those that do not change its bytes
// leave its checksums.
func (t *Tree) change(n *node, fd int, c Change) error {
	if t.sums == nil || c.Mtime == nil || !n.regular() || n.key.dev != t.root.key.dev {
		return t.keepingSums(n, fd, func() error { return change(fd, c) })
	}
	s := t.sums.Acquire(fd, false)
	defer t.sums.Release(s, fd)
	return s.Touch(fd, func() error { return change(fd, c) })
}

// keepingSums runs fn, which changes attributes of an inode of which fd is a descriptor, and not its bytes.
func (t *Tree) keepingSums(n *node, fd int, fn func() error) error {
	if t.sums == nil || !n.regular() || n.key.dev != t.root.key.dev {
		return fn()
	}
	m := t.sums.Moving(fd, "")
	defer m.Done(fd, "")
	return fn()
}

// moving begins a rename of the file of st.
func (t *Tree) moving(st *unix.Statx_t, dir int, name string) integrity.Move {
	if t.sums == nil || st.Mode&unix.S_IFMT != unix.S_IFREG || t.identityOf(st).dev != t.root.key.dev {
		return integrity.Move{}
	}
	return t.sums.Moving(dir, name)
}

// sumsGone says that the inode of st, whose links it counts, has lost one.
func (t *Tree) sumsGone(st *unix.Statx_t) {
	if t.sums != nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink <= 1 && t.identityOf(st).dev == t.root.key.dev {
		t.sums.Removed(st.Ino)
	}
}

// write runs fn, which writes b at off, or at the end, and returns how much it has written.
func (f *File) write(b []byte, off int64, append bool, fn func() (int, error)) (n int, err error) {
	sums := f.Sums()
	if sums == nil {
		return fn()
	}
	if append {
		st, err := statFD(f.fd)
		if err != nil {
			return 0, err
		}
		off = int64(st.Size)
	}
	w := sums.BeginWrite(&integrity.Write{}, f.fd, off, int64(len(b)))
	w.HashOwn(b)
	defer func() {
		ok := err == nil && n == len(b)
		if ok && append { // another append may have come first
			st, err := statFD(f.fd)
			ok = err == nil && int64(st.Size) == off+int64(n)
		}
		w.End(ok)
	}()
	return fn()
}
