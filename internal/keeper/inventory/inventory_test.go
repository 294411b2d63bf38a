package inventory_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/test/leaktest"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }

func keyOf(st *unix.Stat_t) inventory.Key {
	return inventory.Key{Dev: uint64(unix.Major(st.Dev))<<32 | uint64(unix.Minor(st.Dev)), Ino: st.Ino}
}

func open(t testing.TB, dir string) *inventory.Inventory {
	t.Helper()
	v, err := inventory.New(dir, inventory.Options{Skip: ".kv3fs", Kind: func(path string) (inventory.Kind, inventory.Group) {
		return inventory.Entry, groupOf(filepath.Base(path))
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

// groupOf is whose a file is in these tests, by its name.
func groupOf(name string) inventory.Group {
	return inventory.Group{Owner: "owner" + name[len(name)-1:], Model: "model" + name[:1]}
}

// server changes a directory and sends the events that the file tree sends. As the kernel
// does for a mount, it makes entries of one directory one after the other.
type server struct {
	t    testing.TB
	root string
	v    *inventory.Inventory
	link bool // it links files, too

	tree  sync.RWMutex    // held while a directory is made or moved
	dirs  [256]sync.Mutex // by inode
	files [256]sync.Mutex // held while a file shrinks, or is closed
}

// lock locks directories by their inodes.
func (s *server) lock(all ...uint64) (unlock func()) {
	var stripes [256]bool
	for _, ino := range all {
		stripes[ino%256] = true
	}
	for i, on := range stripes {
		if on {
			s.dirs[i].Lock()
		}
	}
	return func() {
		for i, on := range stripes {
			if on {
				s.dirs[i].Unlock()
			}
		}
	}
}

// in calls fn with a directory and its key, if it is still there.
func (s *server) in(dir string, fn func(fd int, k inventory.Key)) {
	s.tree.RLock()
	fd, err := unix.Open(filepath.Join(s.root, dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	s.tree.RUnlock()
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		k := keyOf(&st)
		fn(fd, k)
		s.settle(fd, k)
	}
}

// settle says what a directory takes.
func (s *server) settle(fd int, k inventory.Key) {
	mu := &s.files[k.Ino%256]
	mu.Lock()
	s.v.Settle(k, 0, blocks(fd))
	mu.Unlock()
}

// hold calls fn with an entry that stays alive meanwhile.
func hold(dir int, name string, fn func(fd int, st *unix.Stat_t)) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		fn(fd, &st)
	}
}

// named reports whether an entry is still that one.
func named(dir int, name string, st *unix.Stat_t) bool {
	var now unix.Stat_t
	return unix.Fstatat(dir, name, &now, unix.AT_SYMLINK_NOFOLLOW) == nil && now.Ino == st.Ino
}

func blocks(fd int) int64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return -1
	}
	return st.Blocks
}

// write makes a file larger or smaller through a claim, as a write does.
func (s *server) write(dir, name string, size int64, flags int) {
	s.in(dir, func(d int, dk inventory.Key) {
		unlock := s.lock(dk.Ino)
		var st unix.Stat_t
		fresh := unix.Fstatat(d, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil
		fd, err := unix.Openat(d, name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|flags&^unix.O_TRUNC, 0o600)
		if err != nil {
			unlock()
			return
		}
		defer unix.Close(fd)
		if err := unix.Fstat(fd, &st); err != nil {
			s.t.Error(err)
		}
		k := keyOf(&st)
		if fresh {
			s.v.Created(k, dk, name, false)
		}
		s.v.Opened(k, dk, name)
		unlock()
		mu := &s.files[k.Ino%256]
		if flags&unix.O_TRUNC != 0 {
			mu.Lock()
			unix.Ftruncate(fd, 0)
			s.v.Settle(k, 0, blocks(fd))
			mu.Unlock()
		}
		if s.v.Claim(k, size+8192, false) != nil {
			s.t.Error("a claim was refused, but there is no limit")
		}
		if _, err := unix.Pwrite(fd, make([]byte, size), st.Size); err != nil {
			s.t.Error(err)
		}
		mu.Lock()
		s.v.Settle(k, size+8192, blocks(fd))
		s.v.Closed(k, blocks(fd))
		mu.Unlock()
	})
}

func (s *server) mkdir(dir, name string) {
	s.in(dir, func(d int, dk inventory.Key) {
		defer s.lock(dk.Ino)()
		s.tree.Lock()
		defer s.tree.Unlock()
		if unix.Mkdirat(d, name, 0o700) == nil {
			hold(d, name, func(fd int, st *unix.Stat_t) {
				s.v.Created(keyOf(st), dk, name, true)
				s.settle(fd, keyOf(st))
			})
		}
	})
}

func (s *server) remove(dir, name string) {
	s.in(dir, func(d int, dk inventory.Key) {
		hold(d, name, func(fd int, st *unix.Stat_t) {
			defer s.lock(dk.Ino, st.Ino)()
			if !named(d, name, st) {
				return
			}
			how := 0
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				how = unix.AT_REMOVEDIR
			}
			if unix.Unlinkat(d, name, how) == nil {
				var after unix.Stat_t
				last := how != 0 || unix.Fstat(fd, &after) == nil && after.Nlink == 0
				s.v.Removed(keyOf(st), dk, name, last)
			}
		})
	})
}

func (s *server) rename(dir, name, dir2, name2 string) {
	s.in(dir, func(d int, dk inventory.Key) {
		s.in(dir2, func(d2 int, dk2 inventory.Key) {
			hold(d, name, func(_ int, st *unix.Stat_t) {
				hold(d2, name2, func(fd int, was *unix.Stat_t) {
					defer s.lock(dk.Ino, dk2.Ino, was.Ino)()
					if was.Ino == st.Ino || !named(d, name, st) || !named(d2, name2, was) || unix.Renameat2(d, name, d2, name2, 0) != nil {
						return
					}
					var after unix.Stat_t
					last := unix.Fstat(fd, &after) == nil && after.Nlink == 0 || was.Mode&unix.S_IFMT == unix.S_IFDIR
					s.v.Removed(keyOf(was), dk2, name2, last)
					s.v.Renamed(keyOf(st), dk, name, dk2, name2)
				})
				defer s.lock(dk.Ino, dk2.Ino)()
				s.tree.Lock()
				defer s.tree.Unlock()
				if named(d, name, st) && unix.Renameat2(d, name, d2, name2, unix.RENAME_NOREPLACE) == nil {
					s.v.Renamed(keyOf(st), dk, name, dk2, name2)
				}
			})
		})
	})
}

func (s *server) linkTo(dir, name, dir2, name2 string) {
	s.in(dir, func(d int, dk inventory.Key) {
		s.in(dir2, func(d2 int, dk2 inventory.Key) {
			hold(d, name, func(_ int, st *unix.Stat_t) {
				defer s.lock(dk.Ino, dk2.Ino)()
				if st.Mode&unix.S_IFMT == unix.S_IFREG && named(d, name, st) && unix.Linkat(d, name, d2, name2, 0) == nil {
					s.v.Created(keyOf(st), dk2, name2, false)
				}
			})
		})
	})
}

// usage is what du says of one directory: least without files that have other names
// elsewhere, and most with them.
type usage struct{ least, most, files int64 }

// du walks a directory and returns the usage of each below it, by path.
func du(t testing.TB, root string) map[string]usage {
	t.Helper()
	all := map[string]usage{}
	var walk func(rel string) map[uint64]unix.Stat_t
	walk = func(rel string) map[uint64]unix.Stat_t {
		files := map[uint64]unix.Stat_t{}
		var dir unix.Stat_t
		if err := unix.Lstat(filepath.Join(root, rel), &dir); err != nil {
			t.Fatal(err)
		}
		files[dir.Ino] = dir
		entries, err := os.ReadDir(filepath.Join(root, rel))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if rel == "." && e.Name() == ".kv3fs" {
				continue
			}
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(root, rel, e.Name()), &st); err != nil {
				t.Fatal(err)
			}
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFREG:
				files[st.Ino] = st
			case unix.S_IFDIR:
				for ino, st := range walk(filepath.Join(rel, e.Name())) {
					files[ino] = st
				}
			}
		}
		var u usage
		for _, st := range files {
			if st.Mode&unix.S_IFMT == unix.S_IFREG {
				u.files++
			}
			u.most += st.Blocks * 512
			if st.Nlink == 1 || st.Mode&unix.S_IFMT == unix.S_IFDIR {
				u.least += st.Blocks * 512
			}
		}
		if rel == "." {
			u.least = u.most
		}
		all[rel] = u
		return files
	}
	walk(".")
	return all
}

// same fails the test where the inventory differs from what is on disk.
func same(t testing.TB, v *inventory.Inventory, root string) {
	t.Helper()
	want := du(t, root)
	for rel, u := range want {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(root, rel), &st); err != nil {
			t.Fatal(err)
		}
		d, ok := v.Directory(keyOf(&st))
		if !ok {
			t.Errorf("directory %q is not known", rel)
			continue
		}
		if path, _ := v.Path(d); path != rel {
			t.Errorf("directory %q is believed to be at %q", rel, path)
		}
		if b := d.Bytes(); b < u.least || b > u.most {
			t.Errorf("directory %q takes %d bytes by the inventory, %d to %d on disk", rel, b, u.least, u.most)
		}
		if d.Claimed() != d.Bytes() {
			t.Errorf("directory %q: %d bytes claimed, %d taken", rel, d.Claimed(), d.Bytes())
		}
	}
	if got := v.Root().Files(); got != want["."].files {
		t.Errorf("%d files by the inventory, %d on disk", got, want["."].files)
	}
	if got := v.Directories(); got != len(want) {
		t.Errorf("%d directories by the inventory, %d on disk", got, len(want))
	}
}

// sameGroups fails the test where what the files of a group take differs from what is on disk. One of several names
// counts by any of them.
func sameGroups(t testing.TB, v *inventory.Inventory, root string) {
	t.Helper()
	type has struct {
		st     unix.Stat_t
		groups map[inventory.Group]bool
	}
	byIno := map[uint64]has{}
	err := filepath.WalkDir(root, func(at string, e os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.Name() == ".kv3fs":
			return filepath.SkipDir
		case !e.Type().IsRegular():
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return err
		}
		if byIno[st.Ino].groups == nil {
			byIno[st.Ino] = has{st, map[inventory.Group]bool{}}
		}
		byIno[st.Ino].groups[groupOf(e.Name())] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	least, most := map[inventory.Group]inventory.Total{}, map[inventory.Group]inventory.Total{}
	var all, got inventory.Total
	add := func(sum *inventory.Total, files, bytes int64) {
		sum.Files, sum.Bytes = sum.Files+files, sum.Bytes+bytes
	}
	for _, is := range byIno {
		bytes := is.st.Blocks * 512
		add(&all, 1, bytes)
		for g := range is.groups {
			sum := most[g]
			add(&sum, 1, bytes)
			most[g] = sum
			if len(is.groups) == 1 {
				sum := least[g]
				add(&sum, 1, bytes)
				least[g] = sum
			}
		}
	}
	for _, is := range v.Groups(v.Root()) {
		l, m := least[is.Group], most[is.Group]
		if is.Files < l.Files || is.Files > m.Files || is.Bytes < l.Bytes || is.Bytes > m.Bytes {
			t.Errorf("%d files of %d bytes of %+v; want %d to %d of %d to %d", is.Files, is.Bytes, is.Group, l.Files, m.Files, l.Bytes, m.Bytes)
		}
		add(&got, is.Files, is.Bytes)
	}
	if got != all {
		t.Errorf("all groups together have %d files of %d bytes; want %d of %d", got.Files, got.Bytes, all.Files, all.Bytes)
	}
}

// Random operations of several clients, with scans in between: the totals are those on
// disk; and so they are for an inventory that starts anew, and after changes that nobody
// sent events of.
func TestTotals(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 1))
	for round := range 12 {
		root := t.TempDir()
		for i := range random.IntN(40) {
			dir := filepath.Join(root, fmt.Sprint("d", random.IntN(4)), fmt.Sprint("d", random.IntN(4)))
			os.MkdirAll(dir, 0o700)
			os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), make([]byte, random.IntN(40000)), 0o600)
		}
		os.MkdirAll(filepath.Join(root, ".kv3fs"), 0o700)
		os.WriteFile(filepath.Join(root, ".kv3fs", "state"), make([]byte, 10000), 0o600)
		v := open(t, root)
		var clients sync.WaitGroup
		s := &server{t: t, root: root, v: v, link: round%2 == 0}
		for range 4 {
			mine := rand.New(rand.NewPCG(random.Uint64(), 2))
			clients.Go(func() {
				for range 150 {
					s.random(mine)
				}
			})
		}
		scan(t, v)
		clients.Wait()
		look(t, v)
		same(t, v, root)
		if !s.link { // one of several names may count by one that was removed, until the next scan
			sameGroups(t, v, root)
		}
		if t.Failed() {
			t.Fatalf("round %d: after events and a scan at once", round)
		}

		again := open(t, root)
		scan(t, again)
		same(t, again, root)
		sameGroups(t, again, root)
		if t.Failed() {
			t.Fatalf("round %d: after a new start", round)
		}

		unseen := &server{t: t, root: root, v: open(t, root), link: true} // its events go nowhere
		for range 60 {
			unseen.random(random)
		}
		scan(t, v)
		same(t, v, root)
		sameGroups(t, v, root)
		if t.Failed() {
			t.Fatalf("round %d: after changes without events", round)
		}
	}
}

func scan(t testing.TB, v *inventory.Inventory) {
	t.Helper()
	if err := v.Scan(context.Background()); err != nil {
		t.Fatal(err)
	}
	look(t, v)
}

func look(t testing.TB, v *inventory.Inventory) {
	t.Helper()
	overlooked, err := v.Look(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if overlooked {
		if err := v.Scan(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// random does one operation on names that other clients use, too.
func (s *server) random(r *rand.Rand) {
	dir := func() string {
		dir := "."
		for range r.IntN(4) {
			dir = filepath.Join(dir, fmt.Sprint("d", r.IntN(4)))
		}
		return dir
	}
	file := func() string { return fmt.Sprint("f", r.IntN(12)) }
	sub := func() string { return fmt.Sprint("d", r.IntN(4)) }
	ops := 11
	if s.link {
		ops++
	}
	switch r.IntN(ops) {
	case 0, 1:
		s.mkdir(dir(), sub())
	case 2, 3, 4:
		s.write(dir(), file(), r.Int64N(50000), unix.O_CREAT)
	case 5:
		s.write(dir(), file(), r.Int64N(5000), unix.O_TRUNC)
	case 6, 7:
		s.remove(dir(), file())
	case 8:
		s.remove(dir(), sub())
	case 9:
		s.rename(dir(), file(), dir(), file())
	case 10:
		s.rename(dir(), sub(), dir(), sub())
	case 11:
		s.linkTo(dir(), file(), dir(), file())
	}
}
