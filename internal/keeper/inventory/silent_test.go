package inventory_test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

func openSilent(t testing.TB, dir string, silent inventory.Silent) *inventory.Inventory {
	t.Helper()
	v, err := inventory.New(dir, inventory.Options{Skip: ".kv3fs-keep", Silent: &silent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	must(t, v.Scan(t.Context()))
	return v
}

func refresh(t testing.TB, v *inventory.Inventory) (whole int) {
	t.Helper()
	dirs, err := v.Refresh(t.Context())
	must(t, err)
	return len(dirs)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// duOf returns what du counts in a directory, and how many files.
func duOf(t testing.TB, dir string) (bytes, files int64) {
	t.Helper()
	seen := map[uint64]bool{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err == nil && !seen[st.Ino] {
			seen[st.Ino] = true
			bytes += st.Blocks * 512
			if !e.IsDir() {
				files++
			}
		}
		return err
	}))
	return bytes, files
}

// Without any event, Refresh finds what other programs have made, removed, renamed, written and
// replaced.
func TestRefresh(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 0))
	// Of a file system that gives the inode of a removed file to a new one of the same name, only a Scan tells.
	dir, err := os.MkdirTemp("/dev/shm", "kv3fs-refresh-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	path := func() string {
		return filepath.Join(dir, fmt.Sprintf("d%d/e%d/f%d", r.IntN(4), r.IntN(3), r.IntN(8)))
	}
	v := openSilent(t, dir, inventory.Silent{})
	write := func(path string, how int, size int) {
		if os.MkdirAll(filepath.Dir(path), 0o700) != nil {
			return
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|how, 0o600)
		if err != nil {
			return
		}
		defer f.Close()
		_, err = f.Write(make([]byte, size))
		must(t, err)
	}
	for round := range 60 {
		grows := map[string]inventory.Key{} // files that are new
		for range 20 {
			switch p := path(); r.IntN(7) {
			case 0, 1:
				if _, err := os.Lstat(p); err != nil {
					write(p, os.O_EXCL, r.IntN(50_000))
					grows[p] = inodeAt(p)
				}
			case 2: // temporary and renamed, also over another one
				write(p+".tmp", os.O_EXCL, r.IntN(50_000))
				_ = os.Rename(p+".tmp", p)
			case 3:
				_ = os.Remove(p)
			case 4:
				_ = os.Rename(p, path())
			case 5:
				_ = os.Rename(filepath.Dir(p), filepath.Join(filepath.Dir(filepath.Dir(path())), fmt.Sprint("e", r.IntN(3))))
			case 6:
				if r.IntN(5) == 0 {
					must(t, os.RemoveAll(filepath.Dir(p)))
				}
			}
		}
		refresh(t, v)
		for p, k := range grows { // one that was new is looked at without its directory
			if k != (inventory.Key{}) && inodeAt(p) == k {
				write(p, os.O_APPEND, r.IntN(50_000))
			}
		}
		refresh(t, v)
		bytes, files := duOf(t, dir)
		if v.Root().Bytes() != bytes || v.Root().Files() != files {
			t.Fatalf("round %d: %d bytes in %d files, du says %d in %d", round, v.Root().Bytes(), v.Root().Files(), bytes, files)
		}
	}
}

// A Refresh looks at directories, at new files and at those that may be growing, and at no others.
func TestRefreshIsCheap(t *testing.T) {
	dir := t.TempDir()
	const dirs, files = 10, 200
	old := time.Now().Add(-48 * time.Hour)
	for i := range dirs {
		for j := range files {
			p := filepath.Join(dir, fmt.Sprint(i), fmt.Sprint(j))
			must(t, os.MkdirAll(filepath.Dir(p), 0o700))
			must(t, os.WriteFile(p, []byte("x"), 0o600))
			must(t, os.Chtimes(p, old, old))
		}
	}
	v := openSilent(t, dir, inventory.Silent{})
	looks := func() int64 {
		before := v.Looks()
		refresh(t, v)
		return v.Looks() - before
	}
	// Directories that have just changed are read again for a while.
	cheap := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); looks() > dirs+1; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("it looks at more than directories, though nothing has changed for a minute")
			}
		}
	}
	cheap()
	must(t, os.WriteFile(filepath.Join(dir, "3/new"), make([]byte, 10_000), 0o600))
	if n := looks(); n > dirs+5 {
		t.Errorf("%d looks for a new file", n)
	}
	if bytes, _ := duOf(t, dir); v.Root().Bytes() != bytes {
		t.Errorf("%d bytes, du says %d", v.Root().Bytes(), bytes)
	}
	cheap()
}

// Every directory is read whole in its time, a part of them each time: then it is seen what has grown there.
func TestRefreshWhole(t *testing.T) {
	dir := t.TempDir()
	const dirs = 50
	for i := range dirs {
		must(t, os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o700))
		p := filepath.Join(dir, fmt.Sprint(i), "f")
		must(t, os.WriteFile(p, []byte("x"), 0o600))
		old := time.Now().Add(-24 * time.Hour) // so that it is not taken for growing
		must(t, os.Chtimes(p, old, old))
	}
	v := openSilent(t, dir, inventory.Silent{RefreshEvery: time.Minute, WholeEvery: 10 * time.Minute})
	for i := range dirs {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i), "f"), make([]byte, 20_000), 0o600))
	}
	for range 5 {
		if whole := refresh(t, v); whole == 0 || whole > 2*(dirs+1)/10+1 {
			t.Errorf("%d directories of %d are read whole at once", whole, dirs+1)
		}
	}
	if bytes, _ := duOf(t, dir); v.Root().Bytes() != bytes {
		t.Errorf("%d bytes, du says %d", v.Root().Bytes(), bytes)
	}
	if whole := refresh(t, v); whole != 0 {
		t.Errorf("%d directories are read whole again at once", whole)
	}
}

// A bound on looks is kept to.
func TestPace(t *testing.T) {
	dir := t.TempDir()
	for i := range 100 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	began := time.Now()
	openSilent(t, dir, inventory.Silent{PerSecond: 200})
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("100 looks took %v at 200 a second", took)
	}
}

// The last use is the file system's: the mtime, or the later one of it and the atime. One that shows
// later is a use.
func TestUsedByTimes(t *testing.T) {
	for _, atime := range []bool{false, true} {
		dir := t.TempDir()
		p := filepath.Join(dir, "f")
		must(t, os.WriteFile(p, []byte("x"), 0o600))
		ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
		must(t, os.Chtimes(p, ago(time.Hour), ago(2*time.Hour)))
		v := openSilent(t, dir, inventory.Silent{Atime: atime})
		k := keyAt(t, p)
		check := func(what string, age time.Duration, uses uint8) {
			t.Helper()
			f, ok := v.File(k)
			is := time.Duration(v.Now()-f.LastUse) * time.Second
			if !ok || (is-age).Abs() > 30*time.Second || f.Uses != uses {
				t.Errorf("atime %v, %s: used %v ago, %d times; want %v and %d", atime, what, is, f.Uses, age, uses)
			}
		}
		pick := func(with, without time.Duration) time.Duration {
			if atime {
				return with
			}
			return without
		}
		check("found", pick(time.Hour, 2*time.Hour), 0)
		must(t, v.Scan(t.Context()))
		check("again", pick(time.Hour, 2*time.Hour), 0)
		must(t, os.Chtimes(p, ago(10*time.Minute), ago(2*time.Hour)))
		must(t, v.Scan(t.Context()))
		if atime {
			check("read", 10*time.Minute, 1)
		} else {
			check("read", 2*time.Hour, 0)
		}
		must(t, os.Chtimes(p, ago(10*time.Minute), ago(5*time.Minute)))
		must(t, v.Scan(t.Context()))
		check("written", 5*time.Minute, uint8(pick(2, 1)))
		// A time from the far future is none.
		must(t, os.Chtimes(p, ago(-1000*time.Hour), ago(-1000*time.Hour)))
		must(t, v.Scan(t.Context()))
		check("future", 5*time.Minute, uint8(pick(2, 1)))
	}
}

// inodeAt returns the key of a file, the zero one if it is not there.
func inodeAt(path string) inventory.Key {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return inventory.Key{}
	}
	return keyOf(&st)
}

func keyAt(t testing.TB, path string) inventory.Key {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return keyOf(&st)
}
