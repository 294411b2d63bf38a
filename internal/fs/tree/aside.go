package tree

import (
	"context"
	"path"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/integrity"
)

// A file that is certainly damaged is set aside: it gets another name in its directory, under
// which nobody looks for it, so that its engine finds nothing and makes the entry anew. For clients it is as if it
// had been removed; who has it open goes on.

// Aside is a file and its new name.
type Aside = struct{ Path, Name string }

const (
	// mostAside bounds what one daemon sets aside: a disk that is failing altogether is not to be tidied.
	mostAside = 1000
	// waitingAside may wait to be set aside; what is found beyond is found again when it is read next.
	waitingAside = 64
)

// found is a damaged file.
type found struct {
	path string
	key  identity
	uid  uint32 // its owner
}

// Damaged says that a range of the file is not what was written. It is logged, and the file's entry is
// set aside if the damage is certain.
func (f *File) Damaged(bad integrity.Damage) {
	t := f.of.tree
	t.mu.RLock()
	at := t.pathLocked(f.of.node.place)
	t.mu.RUnlock()
	t.Damaged(at, f.fd, bad)
}

// Damaged is File.Damaged for a file of a path below the data directory that is open as fd.
func (t *Tree) Damaged(path string, fd int, bad integrity.Damage) {
	t.sums.Report(path, bad)
	if !bad.Certain || t.aside == nil {
		return
	}
	st, err := statFD(fd)
	if err != nil {
		return
	}
	select {
	case t.damaged <- found{path, t.identityOf(&st), st.Uid}:
	default:
	}
}

// setAsideAll sets aside what is found damaged, until ctx ends.
func (t *Tree) setAsideAll(ctx context.Context) {
	for done := 0; done < mostAside; {
		var f found
		select {
		case <-ctx.Done():
			return
		case f = <-t.damaged:
		}
		for _, part := range t.aside(f.path) {
			err := t.setAside(part, f)
			if err == unix.ENOENT {
				continue
			}
			t.sums.ReportAside(part.Path, part.Name, err)
			if err != nil {
				break // the data must not stay without what belongs to it, or go before it
			}
			done++
		}
	}
	if ctx.Err() == nil {
		t.sums.ReportAsideEnd(mostAside)
	}
	<-ctx.Done()
}

// setAside renames the regular file of a path, which is f, or belongs to it and has the same owner. ESTALE: it is another
// one, or has more names. EPERM: its owner is another one.
func (t *Tree) setAside(a Aside, f found) error {
	dir, name := path.Split(a.Path)
	fd, err := openBeneath(t.rootFD, path.Clean("./"+dir), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	p, to := place{t.nodeOf(fd), name}, place{t.nodeOf(fd), a.Name}
	defer t.moves.share()()
	st, err := statAt(fd, name)
	switch {
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT != unix.S_IFREG, st.Nlink != 1, a.Path == f.path && t.identityOf(&st) != f.key:
		return unix.ESTALE
	case st.Uid != f.uid:
		return unix.EPERM // nobody's damage moves the files of others
	}
	n, known := t.byIdentity.get(t.identityOf(&st))
	moved := t.moving(&st, fd, name) // its sums hold for whoever has it open
	t.renames.Add(1)
	err = unix.Renameat2(fd, name, fd, a.Name, unix.RENAME_NOREPLACE)
	t.renames.Add(1)
	if err != nil {
		return err
	}
	moved.Done(fd, a.Name)
	t.renamed(p, fd, to, fd, &st)
	t.left(p, &st)
	t.accountDir(p.parent, fd)
	if known {
		n.aside.Store(true)
		t.note(func(b []byte) []byte { return appendMark(b, recordAside, n.id) })
		(*t.invalidate.Load())(n.id, false)
	}
	return nil
}
