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
)

var (
	root     = cred.Caller{}
	stranger = cred.Caller{UID: 12345, GID: 12345}
	friend   = cred.Caller{UID: 23456, GID: 23456}
)

func TestMain(m *testing.M) {
	unix.Umask(0) // as the daemon has it
	os.Exit(m.Run())
}

func newStage(t testing.TB, opts Options) (*Stage, string) {
	t.Helper()
	dir := t.TempDir()
	for p := dir; len(p) > len(os.TempDir()); p = filepath.Dir(p) {
		os.Chmod(p, 0o755)
	}
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		checkTree(t, s)
		s.Close()
	})
	return s, dir
}

// checkTree verifies reference counts after every test.
func checkTree(t testing.TB, s *Stage) {
	t.Helper()
	s.treeMu.Lock()
	defer s.treeMu.Unlock()
	children := map[*node]int{}
	for i := range s.byID.shards {
		for _, n := range s.byID.shards[i].m {
			if n != s.root {
				children[n.parent]++
			}
			for at := range s.links[n] {
				children[at.parent]++
			}
			if n.lookups == 0 && n.children == 0 && n != s.root {
				t.Errorf("node %q is kept for nobody", n.name)
			}
		}
	}
	for i := range s.byID.shards {
		for _, n := range s.byID.shards[i].m {
			if n.children != children[n] {
				t.Errorf("node %q counts %d children, has %d", n.name, n.children, children[n])
			}
			delete(children, n)
		}
	}
	if len(children) > 0 {
		t.Errorf("%d directories are referenced and not known", len(children))
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func create(t testing.TB, s *Stage, parent uint64, name string, c cred.Caller, mode uint32) (Entry, *Handle) {
	t.Helper()
	e, h, err := s.Create(parent, name, unix.O_RDWR, mode, c, 0)
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	return e, h
}

func TestHidesItsState(t *testing.T) {
	s, _ := newStage(t, Options{})
	if _, err := s.Lookup(RootID, StateName, 0); err != unix.ENOENT {
		t.Errorf("lookup: %v", err)
	}
	if _, err := s.Mkdir(RootID, StateName, 0o755, root, 0); err != unix.EPERM {
		t.Errorf("mkdir: %v", err)
	}
	d := must(s.OpenDir(RootID))
	defer d.Close()
	must(d.List(0, func(e Dirent) bool { t.Errorf("lists %q", e.Name); return true }))
	for _, rel := range []string{StateName, StateName + "/x", "a/../" + StateName} {
		if err := removeAll(s, root, rel); err != unix.ENOENT {
			t.Errorf("remove %s: %v", rel, err)
		}
	}
	if err := removeAll(s, root, "."); err != unix.EINVAL {
		t.Errorf("remove the root: %v", err)
	}
}

func TestInodeNumbers(t *testing.T) { // R33
	s, dir := newStage(t, Options{})
	e := must(s.Getattr(RootID, 0))
	if e.Attr.Ino != 1 {
		t.Errorf("root has st_ino %d", e.Attr.Ino)
	}
	f, h := create(t, s, RootID, "f", root, 0o644)
	defer h.Close()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "f"), &st); err != nil || st.Ino != f.Attr.Ino {
		t.Errorf("st_ino %d, backing %d, %v", f.Attr.Ino, st.Ino, err)
	}
	here := s.root.key.dev
	for _, odd := range []identity{{dev: here + 1, ino: 7}, {dev: here, ino: 1 << 60}, {dev: here, ino: 2}, {dev: here, ino: 1 << 63}} {
		n := s.inoFor(odd.dev, odd.ino)
		if n < madeUpInoStart || n > 0x01ffffffffffffff || n != s.inoFor(odd.dev, odd.ino) {
			t.Errorf("%+v: %#x", odd, n)
		}
	}
	// The same after a forget, and where two have one hash.
	fst := must(statAt(s.rootFD, "f"))
	fst.Ino = 1 << 60
	remember := func(name string) *node { return s.remember(place{s.root, name}, &fst, 0) }
	first := remember("x")
	ino := first.ino
	s.Forget(first.id, 1)
	if again := remember("x"); again.ino != ino {
		t.Errorf("%#x became %#x", ino, again.ino)
	} else {
		s.Forget(again.id, 1)
	}
	squatter := remember("x")
	s.byIno.put(s.inoFor(here, 1<<61), squatter)
	fst.Ino = 1 << 61
	other := remember("y")
	if other.ino != s.inoFor(here, 1<<61)+1 {
		t.Errorf("two inodes have the number %#x", other.ino)
	}
	s.Forget(other.id, 1)
	s.byIno.take(s.inoFor(here, 1<<61), squatter)
	s.Forget(squatter.id, 1)
}

func TestHardLinksAreOneNode(t *testing.T) {
	s, _ := newStage(t, Options{})
	a, h := create(t, s, RootID, "a", root, 0o644)
	h.Close()
	b := must(s.Link(a.ID, RootID, "b", root, 0))
	if a.ID != b.ID || b.Attr.Nlink != 2 {
		t.Fatalf("a %d, b %d, links %d", a.ID, b.ID, b.Attr.Nlink)
	}
	if err := s.Unlink(RootID, "a"); err != nil {
		t.Fatal(err)
	}
	if e, err := s.Getattr(a.ID, 0); err != nil || e.Attr.Nlink != 1 {
		t.Fatalf("after the first name went: %v", err)
	}
	if err := s.Rename(RootID, "b", RootID, "c"); err != nil {
		t.Fatal(err)
	}
	must(s.Getattr(a.ID, 0))
}

func TestAcquireFollowsTheInode(t *testing.T) { // R23, R24, cases 44 and 60
	s, dir := newStage(t, Options{})
	e, h := create(t, s, RootID, "f", root, 0o600)
	must(unix.Pwrite(h.FD(), []byte("hello"), 0))
	if _, err := s.Acquire(999999999, root, false); err != unix.EBADF {
		t.Errorf("unknown inode: %v", err)
	}
	if _, err := s.Acquire(RootID, root, false); err != unix.EBADF {
		t.Errorf("directory: %v", err)
	}
	read := func(when string) {
		t.Helper()
		f, err := s.Acquire(e.Attr.Ino, root, false)
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
	if err := s.Rename(RootID, "f", RootID, "g"); err != nil {
		t.Fatal(err)
	}
	read("renamed")
	if err := s.Unlink(RootID, "g"); err != nil {
		t.Fatal(err)
	}
	read("unlinked")
	h2 := must(s.Open(e.ID, root, unix.O_RDONLY))
	h.Close()
	read("unlinked, reopened")
	if e, err := s.Getattr(e.ID, 0); err != nil || e.Attr.Nlink != 0 {
		t.Errorf("getattr of an unlinked open file: %v", err)
	}
	h2.Close()
	read("unlinked, closed, and not yet forgotten")
	os.WriteFile(filepath.Join(dir, "g"), []byte("other"), 0o644)
	s.Forget(e.ID, 1)
	if _, err := s.Acquire(e.Attr.Ino, root, false); err != unix.EBADF {
		t.Errorf("forgotten: %v", err)
	}
}

func TestAcquireRights(t *testing.T) {
	if !cred.Privileged() {
		t.Skip("needs root")
	}
	s, _ := newStage(t, Options{})
	e, h := create(t, s, RootID, "f", stranger, 0o444)
	try := func(c cred.Caller, write bool) error {
		f, err := s.Acquire(e.Attr.Ino, c, write)
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
		{stranger, true, nil, "has it open for writing although the mode forbids"},
		{friend, false, nil, "the mode allows reading"},
		{friend, true, unix.EACCES, "neither mode nor handle"},
		{friend, true, unix.EACCES, "again, from memory"},
		{root, true, nil, "the super-user"},
	} {
		if err := try(c.who, c.write); err != c.want {
			t.Errorf("uid %d write %v (%s): %v", c.who.UID, c.write, c.why, err)
		}
	}
	mode := uint32(0o600)
	must(s.Setattr(e.ID, Change{Mode: &mode}, 0))
	if err := try(friend, false); err != unix.EACCES {
		t.Errorf("after chmod 0600: %v", err)
	}
	h.Close()
	if err := try(stranger, true); err != nil {
		t.Errorf("owner, nobody has it open: %v", err)
	}
	if n, _ := s.node(e.ID); n.open.Load() != nil {
		t.Error("a descriptor stays although nobody uses it")
	}
}

func TestWrittenInvalidatesOncePerBurst(t *testing.T) {
	var calls atomic.Int64
	s, _ := newStage(t, Options{Invalidate: func(uint64) { calls.Add(1) }})
	e, h := create(t, s, RootID, "f", root, 0o600)
	defer h.Close()
	f := must(s.Acquire(e.Attr.Ino, root, true))
	defer f.Release()
	f.Written()
	if calls.Load() != 0 {
		t.Fatal("invalidated although nobody cached")
	}
	n, _ := s.node(e.ID)
	n.hotUntil.Store(0)
	if e := must(s.Getattr(e.ID, time.Minute)); e.Keep != time.Minute {
		t.Fatalf("cold file: keep %v", e.Keep)
	}
	for range 100 {
		f.Written()
	}
	if calls.Load() != 1 {
		t.Fatalf("%d invalidations of one burst", calls.Load())
	}
	if e := must(s.Getattr(e.ID, time.Minute)); e.Keep != 0 {
		t.Fatalf("hot file: keep %v", e.Keep)
	}
}

func TestSwappedDirectoryIsNotFollowed(t *testing.T) {
	s, dir := newStage(t, Options{})
	outside := t.TempDir()
	os.WriteFile(filepath.Join(outside, "f"), []byte("secret"), 0o644)
	d := must(s.Mkdir(RootID, "d", 0o755, root, 0))
	f, h := create(t, s, d.ID, "f", root, 0o644)
	h.Close()
	os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "aside"))
	os.Symlink(outside, filepath.Join(dir, "d"))
	if _, err := s.Open(f.ID, root, unix.O_RDWR); err == nil {
		t.Error("opened through a symbolic link")
	}
	if _, err := s.Lookup(d.ID, "f", 0); err == nil {
		t.Error("looked up through a symbolic link")
	}
	if err := s.Unlink(d.ID, "f"); err == nil {
		t.Error("unlinked through a symbolic link")
	}
	if _, _, err := s.Create(d.ID, "new", unix.O_RDWR, 0o644, root, 0); err == nil {
		t.Error("created through a symbolic link")
	}
	if err := removeAll(s, root, "d/f"); err == nil {
		t.Error("removed through a symbolic link")
	}
	if _, err := os.Stat(filepath.Join(outside, "f")); err != nil {
		t.Error(err)
	}
	os.Remove(filepath.Join(dir, "d"))
	os.Mkdir(filepath.Join(dir, "d"), 0o755)
	os.WriteFile(filepath.Join(dir, "d/f"), nil, 0o644)
	if _, err := s.Open(f.ID, root, unix.O_RDWR); err != unix.ESTALE {
		t.Errorf("another file of that name: %v", err)
	}
}

func TestRenamesWhileOpening(t *testing.T) {
	s, _ := newStage(t, Options{})
	a := must(s.Mkdir(RootID, "a", 0o755, root, 0))
	b := must(s.Mkdir(RootID, "b", 0o755, root, 0))
	sub := must(s.Mkdir(a.ID, "sub", 0o755, root, 0))
	f, h := create(t, s, sub.ID, "f", root, 0o644)
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
			if err := s.Rename(from, "sub", to, "sub"); err != nil {
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
				h, err := s.Open(f.ID, root, unix.O_RDWR)
				if err != nil {
					t.Errorf("open while its directory moves: %v", err)
					return
				}
				h.Close()
				if _, err := s.Lookup(sub.ID, "f", 0); err != nil {
					t.Errorf("lookup: %v", err)
				} else {
					s.Forget(f.ID, 1)
				}
				if _, err := s.Getattr(f.ID, 0); err != nil {
					t.Errorf("getattr: %v", err)
				}
			}
		})
	}
	openers.Wait()
	close(stop)
	wg.Wait()
}

func TestForgettingGivesMemoryBack(t *testing.T) {
	if testing.Short() {
		t.Skip("remembers 300000 nodes")
	}
	s, dir := newStage(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	// The stage does not care whether the files are there when it remembers
	// them: one inode's status with other numbers stands for many files.
	os.WriteFile(filepath.Join(dir, "f"), nil, 0o644)
	st := must(statAt(s.rootFD, "f"))
	var before, full, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const nodes = 300_000
	ids := make([]uint64, nodes)
	for i := range ids {
		st.Ino = uint64(1000 + i)
		ids[i] = s.remember(place{s.root, fmt.Sprintf("file-%07d", i)}, &st, 0).id
	}
	runtime.ReadMemStats(&full)
	for _, id := range ids {
		s.Forget(id, 1)
	}
	ids = nil
	if len(s.orphans)+len(s.closing) != 0 {
		t.Error("descriptors of forgotten files stay open")
	}
	if s.Nodes() != 1 {
		t.Fatalf("%d nodes", s.Nodes())
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapInuse) - int64(before.HeapInuse)
	t.Logf("%d bytes a node, %d KiB left", (full.HeapInuse-before.HeapInuse)/nodes, grown>>10)
	if grown > 8<<20 {
		t.Errorf("%d MiB stay in use", grown>>20)
	}
}

func TestBigDirectoryWhileDeleting(t *testing.T) { // R27
	s, dir := newStage(t, Options{})
	const files = 20000
	for i := range files {
		fd := must(unix.Open(filepath.Join(dir, fmt.Sprintf("f%05d", i)), unix.O_CREAT|unix.O_WRONLY, 0o644))
		unix.Close(fd)
	}
	d := must(s.OpenDir(RootID))
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
			s.Unlink(RootID, e.Name)
			return true
		}))
	}
	if len(seen) != files {
		t.Errorf("saw %d of %d", len(seen), files)
	}
}

func TestRemoveAllAndMoveIntoAsCaller(t *testing.T) {
	s, dir := newStage(t, Options{})
	os.MkdirAll(filepath.Join(dir, "t/a/b/c"), 0o755)
	os.WriteFile(filepath.Join(dir, "t/a/f"), nil, 0o644)
	outside := t.TempDir()
	os.WriteFile(filepath.Join(outside, "keep"), nil, 0o644)
	os.Symlink(outside, filepath.Join(dir, "t/a/link"))
	if cred.Privileged() {
		if err := removeAll(s, stranger, "t"); err != unix.EPERM {
			t.Errorf("stranger: %v", err)
		}
		if _, err := s.MoveInto(stranger, "t", RootID, "u"); err != unix.EPERM {
			t.Errorf("stranger moved: %v", err)
		}
	}
	if _, err := s.MoveInto(root, "t/a", RootID, "u"); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(s, root, "u"); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(s, root, "u"); err != unix.ENOENT {
		t.Errorf("again: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Error("a symbolic link was followed")
	}
}

func TestDeepPaths(t *testing.T) {
	s, _ := newStage(t, Options{})
	at := uint64(RootID)
	name := strings.Repeat("n", 250)
	for range 20 {
		at = must(s.Mkdir(at, name, 0o755, root, 0)).ID
	}
	e, h := create(t, s, at, "f", root, 0o644)
	h.Close()
	if _, err := s.Getattr(e.ID, 0); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(s, root, name); err != nil {
		t.Fatal(err)
	}
}

func TestCreateRaces(t *testing.T) { // R21, R25
	s, _ := newStage(t, Options{})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			_, h, err := s.Create(RootID, "shared", unix.O_RDWR, 0o644, root, 0)
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			defer h.Close()
			size := uint64(1 << 40)
			if _, err := s.Setattr(h.ID(), Change{Size: &size}, 0); err != nil {
				t.Errorf("truncate: %v", err)
			}
		})
	}
	wg.Wait()
	if _, _, err := s.Create(RootID, "shared", unix.O_RDWR|unix.O_EXCL, 0o644, root, 0); !errors.Is(err, unix.EEXIST) {
		t.Errorf("O_EXCL: %v", err)
	}
}

func BenchmarkAcquire(b *testing.B) {
	s, _ := newStage(b, Options{})
	e, h := create(b, s, RootID, "f", stranger, 0o600)
	defer h.Close()
	b.ReportAllocs()
	for b.Loop() {
		f, err := s.Acquire(e.Attr.Ino, stranger, true)
		if err != nil {
			b.Fatal(err)
		}
		f.Release()
	}
}

func BenchmarkWritten(b *testing.B) {
	s, _ := newStage(b, Options{})
	e, h := create(b, s, RootID, "f", stranger, 0o600)
	defer h.Close()
	f := must(s.Acquire(e.Attr.Ino, stranger, true))
	defer f.Release()
	for b.Loop() {
		f.Written()
	}
}

// A state directory that others made, or could look into, is not taken over.
func TestPlantedState(t *testing.T) {
	for what, plant := range map[string]func(path string) error{
		"mode":    func(p string) error { return os.Mkdir(p, 0o755) },
		"symlink": func(p string) error { return os.Symlink(t.TempDir(), p) },
		"file":    func(p string) error { return os.WriteFile(p, nil, 0o700) },
		"owner": func(p string) error {
			return errors.Join(os.Mkdir(p, 0o700), os.Chown(p, int(stranger.UID), int(stranger.GID)))
		},
	} {
		dir := t.TempDir()
		if err := plant(filepath.Join(dir, StateName)); err != nil {
			t.Logf("%s: %v", what, err)
			continue
		}
		if s, err := Open(dir, Options{}); err == nil {
			s.Close()
			t.Errorf("%s: accepted", what)
		}
	}
}

// The state is hidden by whatever name the data directory knows it.
func TestHidesItsStateByIdentity(t *testing.T) {
	s, dir := newStage(t, Options{})
	// What a casefolding directory would do with another spelling.
	if err := os.Rename(filepath.Join(dir, StateName), filepath.Join(dir, ".KV3FS")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lookup(RootID, ".KV3FS", 0); err != unix.ENOENT {
		t.Errorf("lookup: %v", err)
	}
	d := must(s.OpenDir(RootID))
	defer d.Close()
	if _, err := d.Lookup(".KV3FS", 0); err != unix.ENOENT {
		t.Errorf("readdirplus: %v", err)
	}
}
