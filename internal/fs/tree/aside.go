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
}

// Damaged says that a range of the file is not what was written. It is logged, and the file's entry is
// set aside if the damage is certain.
func (f *File) Damaged(bad integrity.Damage) {
	t, n := f.of.tree, f.of.node
	t.mu.RLock()
	at := t.pathLocked(n.place)
	t.mu.RUnlock()
	t.damagedAt(at, n.key, bad)
}

// Damaged is File.Damaged for a file of a path below the data directory that is open as fd.
func (t *Tree) Damaged(path string, fd int, bad integrity.Damage) {
	if st, err := statFD(fd); err == nil {
		t.damagedAt(path, t.identityOf(&st), bad)
	}
}

func (t *Tree) damagedAt(path string, k identity, bad integrity.Damage) {
	t.sums.Report(path, bad)
	if !bad.Certain || t.aside == nil {
		return
	}
	select {
	case t.damaged <- found{path, k}:
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
			key := f.key
			if part.Path != f.path {
				key = identity{}
			}
			err := t.setAside(part, key)
			t.sums.ReportAside(part.Path, part.Name, err)
			if err != nil && err != unix.ENOENT {
				break // the data must not stay without what belongs to it, or go before it
			}
			done++
		}
	}
	<-ctx.Done()
}

// setAside renames the regular file of a path, which is the inode of key, or any if that is zero. ESTALE: it is another
// one, or has more names.
func (t *Tree) setAside(a Aside, key identity) error {
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
	case st.Mode&unix.S_IFMT != unix.S_IFREG, st.Nlink != 1, key != identity{} && t.identityOf(&st) != key:
		return unix.ESTALE
	}
	n, known := t.byIdentity.get(t.identityOf(&st))
	t.renames.Add(1)
	err = unix.Renameat2(fd, name, fd, a.Name, unix.RENAME_NOREPLACE)
	t.renames.Add(1)
	if err != nil {
		return err
	}
	t.renamed(p, fd, to, fd, &st)
	t.left(p, &st)
	t.accountDir(p.parent, fd)
	if known {
		n.aside.Store(true)
		(*t.invalidate.Load())(n.id, false)
	}
	return nil
}
