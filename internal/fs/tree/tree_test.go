package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

var (
	root  = cred.Caller{}
	alice = cred.Caller{UID: 12345, GID: 12345}
	bob   = cred.Caller{UID: 23456, GID: 23456}
)

func TestMain(m *testing.M) {
	unix.Umask(0) // as the daemon has it
	os.Exit(leaktest.Main(m))
}

func newTree(t testing.TB, opts Options) (*Tree, string) {
	t.Helper()
	dir := t.TempDir()
	for p := dir; len(p) > len(os.TempDir()); p = filepath.Dir(p) {
		os.Chmod(p, 0o755)
	}
	tr, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.inconsistent(); err != nil {
			t.Error(err)
		}
		tr.Close()
	})
	return tr, dir
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func create(t testing.TB, tr *Tree, parent uint64, name string, c cred.Caller, mode uint32) (Entry, *Handle) {
	t.Helper()
	e, h, err := tr.Create(parent, name, unix.O_RDWR, mode, c, 0)
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	return e, h
}

// The daemon's state, and in a shared directory that of the keepers of all hosts, which one of them may make at any time, are out of clients' reach.
func TestStateIsHidden(t *testing.T) {
	tr, dir := newTree(t, Options{Shared: Sharing{Uncached: true}})
	other := must(tr.Mkdir(RootID, "other", 0o755, root, 0)).ID
	if err := os.Mkdir(filepath.Join(dir, kv3fs.KeepDir), 0o700); err != nil {
		t.Fatal(err)
	}
	d := must(tr.OpenDir(RootID))
	defer d.Close()
	must(d.List(0, func(e Dirent) bool {
		if e.Name != "other" {
			t.Errorf("lists %q", e.Name)
		}
		return true
	}))
	for _, name := range []string{StateName, kv3fs.KeepDir} {
		if _, err := tr.Lookup(RootID, name, 0, 0); err != unix.ENOENT {
			t.Errorf("lookup: %v", err)
		}
		if _, err := tr.Mkdir(RootID, name, 0o755, root, 0); err != unix.EPERM {
			t.Errorf("mkdir: %v", err)
		}
		if err := tr.Rmdir(RootID, name); err != unix.ENOENT {
			t.Errorf("rmdir: %v", err)
		}
		if err := tr.Rename(RootID, name, other, "x", 0, root); err != unix.ENOENT {
			t.Errorf("rename: %v", err)
		}
		if err := tr.Rename(RootID, "other", RootID, name, 0, root); err != unix.EPERM {
			t.Errorf("rename over it: %v", err)
		}
		if _, err := tr.MoveInto(root, name, other, "x"); err != unix.ENOENT {
			t.Errorf("move: %v", err)
		}
		if err := tr.RemoveEntry(root, RootID, name, true, nil); err != unix.ENOENT {
			t.Errorf("remove: %v", err)
		}
		for _, rel := range []string{name, name + "/x", "a/../" + name} {
			if err := removeAll(tr, root, rel); err != unix.ENOENT {
				t.Errorf("remove %s: %v", rel, err)
			}
		}
	}
	if err := removeAll(tr, root, "."); err != unix.EINVAL {
		t.Errorf("remove the root: %v", err)
	}
}

func TestInodeNumbers(t *testing.T) { // R33
	tr, dir := newTree(t, Options{})
	e := must(tr.Getattr(RootID, 0))
	if e.Attr.Ino != 1 {
		t.Errorf("root has st_ino %d", e.Attr.Ino)
	}
	f, h := create(t, tr, RootID, "f", root, 0o644)
	defer h.Close()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "f"), &st); err != nil || st.Ino != f.Attr.Ino {
		t.Errorf("st_ino %d, backing %d, %v", f.Attr.Ino, st.Ino, err)
	}
	here := tr.root.key.dev
	for _, odd := range []identity{{dev: here + 1, ino: 7}, {dev: here, ino: 1 << 60}, {dev: here, ino: 2}, {dev: here, ino: 1 << 63}} {
		n := tr.inoFor(odd.dev, odd.ino)
		if n < madeUpInoStart || n > 0x01ffffffffffffff || n != tr.inoFor(odd.dev, odd.ino) {
			t.Errorf("%+v: %#x", odd, n)
		}
	}
	// The same number after a forget; different ones where two have one hash.
	fst := must(statAt(tr.rootFD, "f"))
	fst.Ino = 1 << 60
	remember := func(name string) *node {
		n, _ := tr.remember(place{tr.root, name}, &fst, 0)
		return n
	}
	first := remember("x")
	ino := first.ino
	tr.Forget(first.id, 1)
	if again := remember("x"); again.ino != ino {
		t.Errorf("%#x became %#x", ino, again.ino)
	} else {
		tr.Forget(again.id, 1)
	}
	squatter := remember("x")
	tr.byIno.put(tr.inoFor(here, 1<<61), squatter)
	fst.Ino = 1 << 61
	other := remember("y")
	if other.ino != tr.inoFor(here, 1<<61)+1 {
		t.Errorf("two inodes have the number %#x", other.ino)
	}
	tr.Forget(other.id, 1)
	tr.byIno.take(tr.inoFor(here, 1<<61), squatter)
	tr.Forget(squatter.id, 1)
}

func TestHardLinksAreOneNode(t *testing.T) {
	tr, _ := newTree(t, Options{})
	a, h := create(t, tr, RootID, "a", root, 0o644)
	h.Close()
	b := must(tr.Link(a.ID, RootID, "b", root, 0))
	if a.ID != b.ID || b.Attr.Nlink != 2 {
		t.Fatalf("a %d, b %d, links %d", a.ID, b.ID, b.Attr.Nlink)
	}
	if err := tr.Unlink(RootID, "a"); err != nil {
		t.Fatal(err)
	}
	if e, err := tr.Getattr(a.ID, 0); err != nil || e.Attr.Nlink != 1 {
		t.Fatalf("after the first name was removed: %v", err)
	}
	if err := tr.Rename(RootID, "b", RootID, "c", 0, root); err != nil {
		t.Fatal(err)
	}
	must(tr.Getattr(a.ID, 0))
}

func TestAcquireFollowsTheInode(t *testing.T) { // R23, R24, cases 44 and 60
	tr, dir := newTree(t, Options{})
	e, h := create(t, tr, RootID, "f", root, 0o600)
	must(unix.Pwrite(h.FD(), []byte("hello"), 0))
	if _, err := tr.Acquire(999999999, root, false); err != unix.EBADF {
		t.Errorf("unknown inode: %v", err)
	}
	if _, err := tr.Acquire(RootID, root, false); err != unix.EBADF {
		t.Errorf("directory: %v", err)
	}
	read := func(when string) {
		t.Helper()
		f, err := tr.Acquire(e.Attr.Ino, root, false)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer f.Release()
		buf := make([]byte, 16)
		if n, err := unix.Pread(f.FD(), buf, 0); string(buf[:max(n, 0)]) != "hello" {
			t.Errorf("%s: read %q, %v", when, buf[:max(n, 0)], err)
		}
	}
	read("open")
	if err := tr.Rename(RootID, "f", RootID, "g", 0, root); err != nil {
		t.Fatal(err)
	}
	read("renamed")
	if err := tr.Unlink(RootID, "g"); err != nil {
		t.Fatal(err)
	}
	read("unlinked")
	h2 := must(tr.Open(e.ID, root, unix.O_RDONLY))
	h.Close()
	read("unlinked, reopened")
	if e, err := tr.Getattr(e.ID, 0); err != nil || e.Attr.Nlink != 0 {
		t.Errorf("getattr of an unlinked open file: %v", err)
	}
	h2.Close()
	read("unlinked, closed, and not yet forgotten")
	os.WriteFile(filepath.Join(dir, "g"), []byte("other"), 0o644)
	tr.Forget(e.ID, 1)
	if _, err := tr.Acquire(e.Attr.Ino, root, false); err != unix.EBADF {
		t.Errorf("forgotten: %v", err)
	}
}

func TestAcquireRights(t *testing.T) {
	if !cred.Privileged() {
		t.Skip("needs root")
	}
	tr, _ := newTree(t, Options{})
	e, h := create(t, tr, RootID, "f", alice, 0o444)
	try := func(c cred.Caller, write bool) error {
		f, err := tr.Acquire(e.Attr.Ino, c, write)
		if err == nil {
			f.Release()
		}
		return err
	}
	for _, c := range []struct {
		who   cred.Caller
		write bool
		want  error
		why   string
	}{
		{alice, true, nil, "has it open for writing although the mode forbids"},
		{bob, false, nil, "the mode allows reading"},
		{bob, true, unix.EACCES, "neither mode nor handle"},
		{bob, true, unix.EACCES, "again, from memory"},
		{root, true, nil, "the super-user"},
	} {
		if err := try(c.who, c.write); err != c.want {
			t.Errorf("uid %d write %v (%s): %v", c.who.UID, c.write, c.why, err)
		}
	}
	mode := uint32(0o600)
	must(tr.Setattr(e.ID, Change{Mode: &mode}, 0))
	if err := try(bob, false); err != unix.EACCES {
		t.Errorf("after chmod 0600: %v", err)
	}
	h.Close()
	if err := try(alice, true); err != nil {
		t.Errorf("owner, no open file: %v", err)
	}
	if n, _ := tr.node(e.ID); n.open.Load() != nil {
		t.Error("a descriptor stays open although it is not in use")
	}
}

func TestWrittenInvalidatesOncePerBurst(t *testing.T) {
	var calls atomic.Int64
	tr, _ := newTree(t, Options{Invalidate: func(uint64, bool) { calls.Add(1) }})
	e, h := create(t, tr, RootID, "f", root, 0o600)
	defer h.Close()
	f := must(tr.Acquire(e.Attr.Ino, root, true))
	defer f.Release()
	f.Written()
	if calls.Load() != 0 {
		t.Fatal("invalidated although nothing was cached")
	}
	n, _ := tr.node(e.ID)
	n.hotUntil.Store(0)
	if e := must(tr.Getattr(e.ID, time.Minute)); e.Keep != time.Minute {
		t.Fatalf("cold file: keep %v", e.Keep)
	}
	for range 100 {
		f.Written()
	}
	if calls.Load() != 1 {
		t.Fatalf("%d invalidations of one burst", calls.Load())
	}
	if e := must(tr.Getattr(e.ID, time.Minute)); e.Keep != 0 {
		t.Fatalf("hot file: keep %v", e.Keep)
	}
}

func TestSwappedDirectoryIsNotFollowed(t *testing.T) {
	tr, dir := newTree(t, Options{})
	outside := t.TempDir()
	os.WriteFile(filepath.Join(outside, "f"), []byte("secret"), 0o644)
	d := must(tr.Mkdir(RootID, "d", 0o755, root, 0))
	f, h := create(t, tr, d.ID, "f", root, 0o644)
	h.Close()
	os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "aside"))
	os.Symlink(outside, filepath.Join(dir, "d"))
	if _, err := tr.Open(f.ID, root, unix.O_RDWR); err == nil {
		t.Error("opened through a symbolic link")
	}
	if _, err := tr.Lookup(d.ID, "f", 0, 0); err == nil {
		t.Error("looked up through a symbolic link")
	}
	if err := tr.Unlink(d.ID, "f"); err == nil {
		t.Error("unlinked through a symbolic link")
	}
	if _, _, err := tr.Create(d.ID, "new", unix.O_RDWR, 0o644, root, 0); err == nil {
		t.Error("created through a symbolic link")
	}
	if err := removeAll(tr, root, "d/f"); err == nil {
		t.Error("removed through a symbolic link")
	}
	if _, err := os.Stat(filepath.Join(outside, "f")); err != nil {
		t.Error(err)
	}
	os.Remove(filepath.Join(dir, "d"))
	os.Mkdir(filepath.Join(dir, "d"), 0o755)
	os.WriteFile(filepath.Join(dir, "d/f"), nil, 0o644)
	if _, err := tr.Open(f.ID, root, unix.O_RDWR); err != unix.ESTALE {
		t.Errorf("another file of that name: %v", err)
	}
}

func TestRenamesWhileOpening(t *testing.T) {
	tr, _ := newTree(t, Options{})
	tr.moves.patience = time.Minute // no move hangs here, but a processor may be long in coming
	a := must(tr.Mkdir(RootID, "a", 0o755, root, 0))
	b := must(tr.Mkdir(RootID, "b", 0o755, root, 0))
	sub := must(tr.Mkdir(a.ID, "sub", 0o755, root, 0))
	f, h := create(t, tr, sub.ID, "f", root, 0o644)
	h.Close()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		from, to := a.ID, b.ID
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := tr.Rename(from, "sub", to, "sub", 0, root); err != nil {
				t.Errorf("rename: %v", err)
				return
			}
			from, to = to, from
		}
	})
	var openers sync.WaitGroup
	for range 3 {
		openers.Go(func() {
			for range 700 {
				h, err := tr.Open(f.ID, root, unix.O_RDWR)
				if err != nil {
					t.Errorf("open while its directory moves: %v", err)
					return
				}
				h.Close()
				if _, err := tr.Lookup(sub.ID, "f", 0, 0); err != nil {
					t.Errorf("lookup: %v", err)
				} else {
					tr.Forget(f.ID, 1)
				}
				if _, err := tr.Getattr(f.ID, 0); err != nil {
					t.Errorf("getattr: %v", err)
				}
			}
		})
	}
	openers.Wait()
	close(stop)
	wg.Wait()
}

func TestForgettingReturnsMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("remembers 300000 nodes")
	}
	tr, dir := newTree(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { tr.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	// The tree does not check whether the files exist when it remembers
	// them: one inode's status with other numbers stands for many files.
	os.WriteFile(filepath.Join(dir, "f"), nil, 0o644)
	st := must(statAt(tr.rootFD, "f"))
	var before, full, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const nodes = 300_000
	ids := make([]uint64, nodes)
	for i := range ids {
		st.Ino = uint64(1000 + i)
		n, _ := tr.remember(place{tr.root, fmt.Sprintf("file-%07d", i)}, &st, 0)
		ids[i] = n.id
	}
	runtime.ReadMemStats(&full)
	for _, id := range ids {
		tr.Forget(id, 1)
	}
	ids = nil
	if len(tr.orphans)+len(tr.closing) != 0 {
		t.Error("descriptors of forgotten files stay open")
	}
	if tr.Nodes() != 1 {
		t.Fatalf("%d nodes", tr.Nodes())
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapInuse) - int64(before.HeapInuse)
	t.Logf("%d bytes a node, %d KiB left", (full.HeapInuse-before.HeapInuse)/nodes, grown>>10)
	if grown > 8<<20 {
		t.Errorf("%d MiB are still in use", grown>>20)
	}
}

func TestBigDirectoryWhileDeleting(t *testing.T) { // R27
	tr, dir := newTree(t, Options{})
	const files = 20000
	for i := range files {
		fd := must(unix.Open(filepath.Join(dir, fmt.Sprintf("f%05d", i)), unix.O_CREAT|unix.O_WRONLY, 0o644))
		unix.Close(fd)
	}
	d := must(tr.OpenDir(RootID))
	defer d.Close()
	seen := map[string]bool{}
	pos := int64(0)
	for ended := false; !ended; {
		batch := 0
		ended = must(d.List(pos, func(e Dirent) bool {
			if batch == 500 {
				return false
			}
			if seen[e.Name] {
				t.Errorf("%s twice", e.Name)
			}
			seen[e.Name] = true
			batch++
			pos = e.Next
			if e.Type != unix.S_IFREG {
				t.Errorf("type %o", e.Type)
			}
			tr.Unlink(RootID, e.Name)
			return true
		}))
	}
	if len(seen) != files {
		t.Errorf("saw %d of %d", len(seen), files)
	}
}

func TestRemoveAllAndMoveIntoAsCaller(t *testing.T) {
	tr, dir := newTree(t, Options{})
	os.MkdirAll(filepath.Join(dir, "t/a/b/c"), 0o755)
	os.WriteFile(filepath.Join(dir, "t/a/f"), nil, 0o644)
	outside := t.TempDir()
	os.WriteFile(filepath.Join(outside, "keep"), nil, 0o644)
	os.Symlink(outside, filepath.Join(dir, "t/a/link"))
	if cred.Privileged() {
		if err := removeAll(tr, alice, "t"); err != unix.EPERM {
			t.Errorf("alice: %v", err)
		}
		if _, err := tr.MoveInto(alice, "t", RootID, "u"); err != unix.EPERM {
			t.Errorf("alice moved: %v", err)
		}
	}
	if _, err := tr.MoveInto(root, "t/a", RootID, "u"); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(tr, root, "u"); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(tr, root, "u"); err != unix.ENOENT {
		t.Errorf("again: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Error("a symbolic link was followed")
	}
}

func TestDeepPaths(t *testing.T) {
	tr, _ := newTree(t, Options{})
	at := uint64(RootID)
	name := strings.Repeat("n", 250)
	for range 20 {
		at = must(tr.Mkdir(at, name, 0o755, root, 0)).ID
	}
	e, h := create(t, tr, at, "f", root, 0o644)
	h.Close()
	if _, err := tr.Getattr(e.ID, 0); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(tr, root, name); err != nil {
		t.Fatal(err)
	}
}

func TestCreateRaces(t *testing.T) { // R21, R25
	tr, _ := newTree(t, Options{})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			_, h, err := tr.Create(RootID, "shared", unix.O_RDWR, 0o644, root, 0)
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			defer h.Close()
			size := uint64(1 << 40)
			if _, err := tr.Setattr(h.ID(), Change{Size: &size}, 0); err != nil {
				t.Errorf("truncate: %v", err)
			}
		})
	}
	wg.Wait()
	if _, _, err := tr.Create(RootID, "shared", unix.O_RDWR|unix.O_EXCL, 0o644, root, 0); !errors.Is(err, unix.EEXIST) {
		t.Errorf("O_EXCL: %v", err)
	}
}

func BenchmarkAcquire(b *testing.B) {
	tr, _ := newTree(b, Options{})
	e, h := create(b, tr, RootID, "f", alice, 0o600)
	defer h.Close()
	b.ReportAllocs()
	for b.Loop() {
		f, err := tr.Acquire(e.Attr.Ino, alice, true)
		if err != nil {
			b.Fatal(err)
		}
		f.Release()
	}
}

func BenchmarkWritten(b *testing.B) {
	tr, _ := newTree(b, Options{})
	e, h := create(b, tr, RootID, "f", alice, 0o600)
	defer h.Close()
	f := must(tr.Acquire(e.Attr.Ino, alice, true))
	defer f.Release()
	for b.Loop() {
		f.Written()
	}
}

// Open refuses a state directory that another user has made or can look into.
func TestPlantedState(t *testing.T) {
	for what, plant := range map[string]func(path string) error{
		"mode":    func(p string) error { return os.Mkdir(p, 0o755) },
		"symlink": func(p string) error { return os.Symlink(t.TempDir(), p) },
		"file":    func(p string) error { return os.WriteFile(p, nil, 0o700) },
		"owner": func(p string) error {
			return errors.Join(os.Mkdir(p, 0o700), os.Chown(p, int(alice.UID), int(alice.GID)))
		},
	} {
		dir := t.TempDir()
		if err := plant(filepath.Join(dir, StateName)); err != nil {
			t.Logf("%s: %v", what, err)
			continue
		}
		if tr, err := Open(dir, Options{}); err == nil {
			tr.Close()
			t.Errorf("%s: accepted", what)
		}
	}
}

// The state directory is hidden under every name that the data directory accepts for it.
func TestStateIsHiddenByIdentity(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, kv3fs.KeepDir), 0o700); err != nil {
		t.Fatal(err)
	}
	tr := must(Open(dir, Options{Shared: Sharing{Uncached: true}}))
	defer tr.Close()
	d := must(tr.OpenDir(RootID))
	defer d.Close()
	for name, spelt := range map[string]string{StateName: ".KV3FS", kv3fs.KeepDir: ".KV3FS-KEEP"} {
		// As in a casefolding directory, with another spelling.
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(dir, spelt)); err != nil {
			t.Fatal(err)
		}
		if name == kv3fs.KeepDir && tr.kept == (identity{}) {
			t.Log("the file system has no times of birth")
			continue
		}
		if _, err := tr.Lookup(RootID, spelt, 0, 0); err != unix.ENOENT {
			t.Errorf("lookup %s: %v", spelt, err)
		}
		if _, err := d.Lookup(spelt, 0); err != unix.ENOENT {
			t.Errorf("readdirplus %s: %v", spelt, err)
		}
		inside := filepath.Join(dir, spelt, "file")
		if err := os.WriteFile(inside, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, rel := range []string{spelt, spelt + "/file"} {
			if err := removeAll(tr, root, rel); err != unix.ENOENT {
				t.Errorf("remove %s: %v", rel, err)
			}
		}
		if err := tr.RemoveEntry(root, RootID, spelt, true, nil); err != unix.ENOENT {
			t.Errorf("remove %s: %v", spelt, err)
		}
		if _, err := os.Lstat(inside); err != nil {
			t.Errorf("what was in %s: %v", spelt, err)
		}
	}
}
