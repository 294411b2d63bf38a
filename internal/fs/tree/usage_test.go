package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/internal/test/usagemodel"
)

// Blocks behind the end of a file do not hide that a write fills a hole.
func TestHolesBeforePreallocatedBlocks(t *testing.T) {
	model := usagemodel.New(t)
	tr, _ := newTree(t, Options{Usage: model})
	e, h := create(t, tr, RootID, "f", root, 0o644)
	defer tr.Forget(e.ID, 1)
	defer h.Close()
	const size = 1 << 20
	if err := unix.Ftruncate(h.FD(), size); err != nil {
		t.Fatal(err)
	}
	if err := h.Fallocate(unix.FALLOC_FL_KEEP_SIZE, size, size, 0, nil); err != nil && err != unix.EOPNOTSUPP {
		t.Fatal(err)
	}
	before := must(statFD(h.FD())).Blocks * 512
	model.Capacity = max(model.Used(), 1)
	n, err := h.Write(make([]byte, size), 0, false, 0, nil)
	if after := must(statFD(h.FD())).Blocks * 512; after > before {
		t.Errorf("a write into a full directory took %d bytes: %d, %v", after-before, n, err)
	}
	if err := h.Fallocate(unix.FALLOC_FL_KEEP_SIZE, size/2, size/2, 0, nil); err != unix.ENOSPC && err != unix.EOPNOTSUPP {
		t.Errorf("allocate in a full directory: %v", err)
	}
}

// nameless is a Usage that has a file get a name at the moment when it is found to have none.
type nameless struct {
	*usagemodel.Model
	link  func() // returns at once
	named chan struct{}
}

func (u *nameless) Removed(k, dir FileKey, name string, last bool) {
	if u.link != nil {
		u.link()
		select {
		case <-u.named: // it is wrong to hear of this now
		case <-time.After(50 * time.Millisecond):
		}
	}
	u.Model.Removed(k, dir, name, last)
}

func (u *nameless) Created(k, dir FileKey, name string, isDir bool) {
	u.Model.Created(k, dir, name, isDir)
	if u.link != nil {
		close(u.named)
	}
}

// A file that gets its first name while its last use ends is one that is there.
func TestNamedAtTheEnd(t *testing.T) {
	u := &nameless{Model: usagemodel.New(t), named: make(chan struct{})}
	tr, dir := newTree(t, Options{Usage: u})
	u.Model.Created(keyOf(tr.root.key), FileKey{}, "", true)
	u.Model.Settle(keyOf(tr.root.key), 0, usagemodel.Taken(t, dir)[keyOf(tr.root.key)])
	e, h, err := tr.CreateUnnamed(RootID, unix.O_RDWR, 0o644, root, 0)
	if err == unix.EOPNOTSUPP {
		t.Skip("the file system of this test has no O_TMPFILE")
	}
	if err != nil {
		t.Fatal(err)
	}
	must(h.Write(make([]byte, 5000), 0, false, 0, nil))
	other := must(unix.Open(procPath(h.FD()), unix.O_RDWR|unix.O_CLOEXEC, 0)) // as another handle holds it
	defer unix.Close(other)
	linked := make(chan error, 1)
	u.link = func() {
		go func() {
			if err := unix.Linkat(unix.AT_FDCWD, procPath(other), tr.rootFD, "f", unix.AT_SYMLINK_FOLLOW); err != nil {
				linked <- err
				return
			}
			st, err := statFD(other)
			tr.created(tr.root, tr.rootFD, "f", &st)
			linked <- err
		}()
	}
	h.Close()
	if err := <-linked; err != nil {
		t.Fatal(err)
	}
	u.link = nil
	tr.Forget(e.ID, 1)
	u.Check(dir)
}

// removals is a Usage that notes the names that are gone.
type removals struct {
	*usagemodel.Model
	names []string
}

func (u *removals) Removed(k, dir FileKey, name string, last bool) {
	u.names = append(u.names, name)
	u.Model.Removed(k, dir, name, last)
}

// Uses of a removed file say nothing of the one that has taken its place.
func TestUsesOfARemovedFile(t *testing.T) {
	u := &removals{Model: usagemodel.New(t)}
	tr, _ := newTree(t, Options{Usage: u})
	old, h := create(t, tr, RootID, "f", root, 0o644)
	if err := tr.Unlink(RootID, "f"); err != nil {
		t.Fatal(err)
	}
	_, other := create(t, tr, RootID, "f", root, 0o644)
	defer other.Close()
	u.names = nil
	must(tr.Open(old.ID, root, unix.O_RDONLY)).Close()
	h.Close()
	if slices.Contains(u.names, "f") {
		t.Errorf("uses of a file that was f before end, and these names are gone: %q", u.names)
	}
}

// What Usage hears adds up to what is on the disk, whatever is done to the files.
func TestUsageAddsUp(t *testing.T) {
	model := usagemodel.New(t)
	tr, dir := newTree(t, Options{Usage: model})
	// The root is there before.
	model.Created(keyOf(tr.root.key), FileKey{}, "", true)
	model.Settle(keyOf(tr.root.key), 0, usagemodel.Taken(t, dir)[keyOf(tr.root.key)])
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	w := &usageWorld{t: t, tr: tr, r: r, dirs: []uint64{RootID}}
	for range 1500 {
		w.step()
	}
	w.closeAll()
	model.Check(dir)
}

// A use is that a file is opened through the mount, or read by a ring: not that it is made,
// written by a ring, about to be removed or about to be evicted.
func TestWhatIsAUse(t *testing.T) {
	model := usagemodel.New(t)
	tr, dir := newTree(t, Options{Usage: model})
	e, h, err := tr.Create(RootID, "f", unix.O_RDWR, 0o644, root, 0)
	if err != nil {
		t.Fatal(err)
	}
	k := usagemodel.KeyOf(t, filepath.Join(dir, "f"))
	want := func(n int, after string) {
		t.Helper()
		if got := model.Reads(k); got != n {
			t.Errorf("%d uses after %s; want %d", got, after, n)
		}
	}
	defer h.Close() // it holds the inode
	want(0, "it was made")
	must(tr.Open(e.ID, root, unix.O_RDONLY)).Close()
	want(1, "an open")
	f := must(tr.Acquire(e.Attr.Ino, root, true))
	reserved := must(f.Reserve(0, 4096, time.Time{}, nil))
	must(unix.Pwrite(f.FD(), make([]byte, 4096), 0))
	f.Settle(reserved)
	want(1, "a ring's write")
	f.HasRead()
	want(2, "a ring's read")
	f.Release()
	var st unix.Stat_t
	must(0, unix.Lstat(filepath.Join(dir, "f"), &st))
	if err := tr.Evict(".", "f", Victim{Key: k, SizeBytes: st.Size, MtimeNs: st.Mtim.Nano()}); err != unix.EBUSY {
		t.Errorf("evict what is open: %v", err)
	}
	want(2, "an eviction")
	if err := tr.Unlink(RootID, "f"); err != nil {
		t.Fatal(err)
	}
	want(2, "its removal")
}

// usageWorld does random things to a tree.
type usageWorld struct {
	t       *testing.T
	tr      *Tree
	r       *rand.Rand
	dirs    []uint64
	handles []*Handle
	files   []*File
	known   []Entry // lookups to be forgotten
}

const usageNames = 12

func (w *usageWorld) name() string { return fmt.Sprintf("n%d", w.r.IntN(usageNames)) }
func (w *usageWorld) dir() uint64  { return w.dirs[w.r.IntN(len(w.dirs))] }

// keep remembers the lookup of an entry.
func (w *usageWorld) keep(e Entry, err error) (Entry, bool) {
	if err == nil {
		w.known = append(w.known, e)
	}
	return e, err == nil
}

func (w *usageWorld) forget(i int) {
	if uid, toClose := w.tr.Forget(w.known[i].ID, 1); toClose {
		w.tr.CloseForgotten(uid)
	}
	w.known[i] = w.known[len(w.known)-1]
	w.known = w.known[:len(w.known)-1]
}

func (w *usageWorld) step() {
	size := func() int64 { return int64(w.r.IntN(100 << 10)) }
	bytes := make([]byte, size())
	switch w.r.IntN(17) {
	case 0:
		if e, h, err := w.tr.Create(w.dir(), w.name(), unix.O_RDWR|w.r.IntN(2)*unix.O_TRUNC, 0o644, root, 0); err == nil {
			w.keep(e, nil)
			w.handles = append(w.handles, h)
		}
	case 1:
		if e, h, err := w.tr.CreateUnnamed(w.dir(), unix.O_RDWR, 0o644, root, 0); err == nil {
			w.keep(e, nil)
			w.handles = append(w.handles, h)
		}
	case 2:
		if e, ok := w.keep(w.tr.Mkdir(w.dir(), w.name(), 0o755, root, 0)); ok && len(w.dirs) < 6 {
			w.dirs = append(w.dirs, e.ID)
			w.known = w.known[:len(w.known)-1] // for ever
		}
	case 3:
		w.keep(w.tr.Mknod(w.dir(), w.name(), 0o644, root, 0))
		w.keep(w.tr.Symlink(w.dir(), w.name(), string(make([]byte, 0, 8))+"target", root, 0))
	case 4:
		if len(w.known) > 0 {
			w.keep(w.tr.Link(w.known[w.r.IntN(len(w.known))].ID, w.dir(), w.name(), root, 0))
		}
	case 5:
		w.tr.Unlink(w.dir(), w.name())
	case 6:
		w.tr.Rmdir(w.dir(), w.name())
	case 7:
		flags := []uint32{0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE}
		w.tr.Rename(w.dir(), w.name(), w.dir(), w.name(), flags[w.r.IntN(len(flags))], root)
	case 8:
		w.tr.RemoveEntry(root, w.dir(), w.name(), true, nil)
	case 9:
		if e, ok := w.keep(w.tr.Lookup(w.dir(), w.name(), 0, 0)); ok {
			n := uint64(size())
			w.tr.Setattr(e.ID, Change{Size: &n}, 0)
			w.tr.PunchHole(e.ID, root, []uint64{0}, []uint64{8192})
			w.tr.SetUserXattr(e.ID, "user.x", make([]byte, w.r.IntN(3000)), 0, root)
		}
	case 10:
		if e, ok := w.keep(w.tr.Lookup(w.dir(), w.name(), 0, 0)); ok {
			if h, err := w.tr.Open(e.ID, root, w.r.IntN(3)|w.r.IntN(2)*unix.O_TRUNC); err == nil {
				w.handles = append(w.handles, h)
			}
		}
	case 11, 12:
		if len(w.handles) > 0 {
			h := w.handles[w.r.IntN(len(w.handles))]
			h.Write(bytes, size(), w.r.IntN(2) == 0, 0, nil)
		}
	case 13:
		if len(w.handles) > 0 {
			modes := []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE}
			h := w.handles[w.r.IntN(len(w.handles))]
			h.Fallocate(modes[w.r.IntN(len(modes))], size(), size()+1, 0, nil)
		}
	case 14:
		if n := len(w.handles); n > 0 {
			w.handles[n-1].Close()
			w.handles = w.handles[:n-1]
		}
	case 15: // as a ring does
		if len(w.known) > 0 {
			f, err := w.tr.Acquire(w.known[w.r.IntN(len(w.known))].Attr.Ino, root, w.r.IntN(2) == 0)
			if err != nil {
				break
			}
			off := size()
			if reserved, err := f.Reserve(off, int64(len(bytes)), time.Time{}, nil); err == nil {
				unix.Pwrite(f.FD(), bytes, off)
				f.Settle(reserved)
				f.HasRead()
			}
			if len(w.files) < 4 {
				w.files = append(w.files, f)
			} else {
				f.Release()
			}
		}
	case 16:
		if len(w.files) > 0 {
			w.files[0].Release()
			w.files = w.files[1:]
		}
		if len(w.known) > 0 {
			w.forget(w.r.IntN(len(w.known)))
		}
	}
}

// closeAll ends all uses. Then it has everything written back, and uses each file once more: where extents of a file lie
// is noted, or noted no more, in blocks that come and go when they are written back, of which nobody is told.
func (w *usageWorld) closeAll() {
	for _, h := range w.handles {
		h.Close()
	}
	for _, f := range w.files {
		f.Release()
	}
	fd := must(unix.Open(procPath(w.tr.rootFD), unix.O_RDONLY|unix.O_CLOEXEC, 0))
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		w.t.Fatal(err)
	}
	for _, dir := range w.dirs {
		for n := range usageNames {
			if e, ok := w.keep(w.tr.Lookup(dir, fmt.Sprintf("n%d", n), 0, 0)); ok {
				if h, err := w.tr.Open(e.ID, root, unix.O_RDONLY); err == nil {
					h.Close()
				}
			}
		}
	}
	for len(w.known) > 0 {
		w.forget(0)
	}
}

// What a caller may not have is refused before anything is written, and an overwrite of what
// the file has already needs no room.
func TestUsageRefuses(t *testing.T) {
	model := usagemodel.New(t)
	tr, dir := newTree(t, Options{Usage: model})
	model.Capacity = 256 << 10
	e, h := create(t, tr, RootID, "f", root, 0o644)
	defer tr.Forget(e.ID, 1)
	defer h.Close()
	b := make([]byte, 200<<10)
	if n, err := h.Write(b, 0, false, 0, nil); err != nil || n != len(b) {
		t.Fatal(n, err)
	}
	for what, err := range map[string]error{
		"write":     second(h.Write(b, int64(len(b)), false, 0, nil)),
		"append":    second(h.Write(b, 0, true, 0, nil)),
		"fallocate": h.Fallocate(0, 0, 1<<40, 0, nil),
		"ring":      second(must(tr.Acquire(e.Attr.Ino, root, true)).Reserve(1<<20, 1<<20, time.Time{}, nil)),
	} {
		if err != unix.ENOSPC && err != unix.EAGAIN {
			t.Errorf("%s: %v", what, err)
		}
	}
	h.file.Release() // ring's
	if st, err := os.Stat(filepath.Join(dir, "f")); err != nil || st.Size() != int64(len(b)) {
		t.Errorf("%d bytes, %v", st.Size(), err)
	}
	if n, err := h.Write(b, 0, false, 0, nil); err != nil || n != len(b) {
		t.Errorf("overwrite: %d, %v", n, err)
	}
	if err := h.Fallocate(0, 0, int64(len(b)), 0, nil); err != nil {
		t.Errorf("fallocate of what is there: %v", err)
	}
	model.Capacity = 0
	attribute := tr.SetUserXattr(e.ID, "user.x", []byte("1"), 0, root)
	for i := 0; ; i++ { // full to the last byte: no more entries, and removal works
		model.Capacity = model.Used()
		_, _, err := tr.Create(RootID, "g", unix.O_RDWR, 0o644, root, 0)
		if err == unix.ENOSPC {
			break
		}
		t.Fatalf("create: %v", err)
	}
	if attribute == nil { // the file system has some
		if err := tr.SetUserXattr(e.ID, "user.y", []byte("1"), 0, root); err != unix.ENOSPC {
			t.Errorf("set an attribute: %v", err)
		}
		if err := tr.SetUserXattr(e.ID, "user.x", nil, 0, root); err != nil {
			t.Errorf("remove an attribute: %v", err)
		}
		if err := tr.SetFlags(e.ID, root, FlagHugeFile); err != unix.ENOSPC {
			t.Errorf("set a flag that is kept in an attribute: %v", err)
		}
	}
	if tr.acls {
		if err := tr.SetACL(e.ID, AccessACL, maskedACL(), root); err != unix.ENOSPC {
			t.Errorf("set an ACL: %v", err)
		}
	}
	if err := tr.Unlink(RootID, "f"); err != nil {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestGrowth(t *testing.T) {
	const k4 = 4096
	for _, c := range []struct{ off, n, size, allocated, want int64 }{
		{0, 1, 0, 0, k4}, {0, k4, 0, 0, k4}, {k4 - 1, 2, 0, 0, 2 * k4}, {1, k4, 0, 0, 2 * k4},
		{0, k4, k4, k4, 0}, {0, 3 * k4, k4, k4, 2 * k4}, {10 * k4, k4, k4, k4, k4}, // the file may have holes
		{0, 8 * k4, 8 * k4, 6 * k4, 2 * k4}, {0, k4, 8 * k4, 6 * k4, k4}, {0, k4, 8 * k4, 9 * k4, 0}, // and blocks of the file system
	} {
		want := c.want
		if want > 0 {
			want += ownBytes
		}
		if got := growth(c.off, c.n, c.size, c.allocated); got != want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
