package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// scanned returns a keeper that knows what is in a directory.
func scanned(t testing.TB, dir string) *Keeper {
	t.Helper()
	k, err := New(options(dir))
	must(t, err)
	t.Cleanup(func() { _ = k.Close() })
	must(t, k.inv.Scan(context.Background()))
	return k
}

// What groups and directories take together is what everything takes, with several names of a file
// counted once, and so are the files.
func TestGroupsAddUp(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed.New(t), 1))
	dir := t.TempDir()
	var made []string
	for n := range 200 {
		name := [...]string{entry(n), fmt.Sprintf("x%d/y%d/z\xff%d", n%3, n%5, n), fmt.Sprintf("m%d/meta-llama-SEP-L%d@1@0@%x@half.data", n%4, n%3, n), fmt.Sprintf("%d", n)}[rnd.IntN(4)]
		put(t, dir, name, rnd.IntN(20000))
		made = append(made, name)
		if rnd.IntN(5) == 0 {
			other := fmt.Sprintf("links/%d", n)
			must(t, os.MkdirAll(filepath.Join(dir, "links"), 0o700))
			must(t, os.Link(filepath.Join(dir, made[rnd.IntN(len(made))]), filepath.Join(dir, other)))
			made = append(made, other)
		}
	}
	must(t, os.Symlink("x", filepath.Join(dir, "symlink")))
	k := scanned(t, dir)
	for _, top := range []string{".", "x1", "m0"} {
		groups, err := k.Groups(top)
		must(t, err)
		var sum, dirs Group
		for _, g := range groups {
			sum.Bytes, sum.Files = sum.Bytes+g.Bytes, sum.Files+g.Files
		}
		must(t, filepath.WalkDir(filepath.Join(dir, top), func(at string, d fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil && d.IsDir() && d.Name() != k.Skip {
				err = unix.Stat(at, &st)
				dirs.Bytes += st.Blocks * 512
			}
			return err
		}))
		var all []Usage
		must(t, k.Usage(t.Context(), top, 0, func(u Usage) error { all = append(all, u); return nil }))
		if top != "." { // a file with several names may be charged elsewhere
			if sum.Files < all[0].Files {
				t.Errorf("%s: %d files in groups, %d in all", top, sum.Files, all[0].Files)
			}
			continue
		}
		if sum.Bytes+dirs.Bytes != all[0].Bytes || sum.Files != all[0].Files {
			t.Errorf("%s: groups have %d files of %d bytes, directories %d; want %+v", top, sum.Files, sum.Bytes, dirs.Bytes, all)
		}
	}
	if groups, err := k.Groups("m1"); err != nil || slices.ContainsFunc(groups, func(g Group) bool { return !strings.HasPrefix(g.Model, "meta-llama/L") }) {
		t.Errorf("%+v, %v", groups, err)
	}
	// A directory of any depth is one of all, in order.
	var paths []string
	must(t, k.Usage(t.Context(), ".", 1000, func(u Usage) error { paths = append(paths, u.Path); return nil }))
	if !slices.IsSorted(paths[1:]) || paths[0] != "." || len(paths) != k.inv.Directories() {
		t.Errorf("%d directories of %d: %q", len(paths), k.inv.Directories(), paths)
	}
	for _, p := range paths {
		var below []Usage
		must(t, k.Usage(t.Context(), p, 1, func(u Usage) error { below = append(below, u); return nil }))
		for _, u := range below[1:] {
			if path.Dir(u.Path) != p {
				t.Errorf("%q is not right below %q", u.Path, p)
			}
		}
	}
}

// No directory is left out in which a pattern matches something.
func TestMayHold(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed.New(t), 2))
	matches := 0
	for range 20000 {
		var pattern, file []string
		for range 1 + rnd.IntN(4) {
			pattern = append(pattern, [...]string{"a", "b", "*", "[ab]", "?", "a*", `\a`}[rnd.IntN(7)])
		}
		for range 1 + rnd.IntN(5) {
			file = append(file, [...]string{"a", "b", "ab"}[rnd.IntN(3)])
		}
		p, f := path.Join(pattern...), path.Join(file...)
		if !covers(p, f) {
			continue
		}
		matches++
		if top := below(p); top != "." && f != top && !strings.HasPrefix(f, top+"/") {
			t.Fatalf("%s matches %s, and is looked for below %s", p, f, top)
		}
		for d := path.Dir(f); ; d = path.Dir(d) {
			if !covers(p, d) && !mayHold(p, d) {
				t.Fatalf("%s matches %s, but not in %s", p, f, d)
			}
			if d == "." {
				break
			}
		}
	}
	if matches < 100 {
		t.Errorf("only %d matches", matches)
	}
}

// An entry of two files goes as a whole, however it is asked for, and a side file alone once its
// data is gone.
func TestEvictPair(t *testing.T) {
	const side = gdsName + ".metadata"
	for _, c := range []struct {
		ask   string
		lacks string
		want  []Removal
		left  []string
	}{
		{gdsName, "", []Removal{{Path: gdsName, Removed: true}}, nil},
		{"66", "", []Removal{{Path: gdsName, Removed: true}}, nil},
		{"*/63/*", "", []Removal{{Path: gdsName, Removed: true}}, nil},
		{side, "", []Removal{{Path: side, Stays: fmt.Sprintf("it goes with %q", gdsName)}}, []string{gdsName, side}},
		{side, gdsName, []Removal{{Path: side, Removed: true}}, nil},
		{"66", gdsName, []Removal{{Path: side, Removed: true}}, nil},
		{gdsName, side, []Removal{{Path: gdsName, Removed: true}}, nil},
	} {
		dir := t.TempDir()
		for _, name := range []string{gdsName, side} {
			if name != c.lacks {
				put(t, dir, name, 4096)
			}
		}
		k := scanned(t, dir)
		for _, dry := range []bool{true, false} {
			var got []Removal
			must(t, k.Evict(t.Context(), Selection{Patterns: []string{c.ask}}, dry, func(r Removal) error {
				r.Bytes = 0
				got = append(got, r)
				return nil
			}))
			want := slices.Clone(c.want)
			for i := range want {
				want[i].Removed = want[i].Removed && !dry
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s without %q, dry run %v: %+v; want %+v", c.ask, c.lacks, dry, got, want)
			}
		}
		if left := files(t, dir); !slices.Equal(left, c.left) {
			t.Errorf("%s without %q: left %q; want %q", c.ask, c.lacks, left, c.left)
		}
		_, err := k.Describe(gdsName)
		if gone := len(c.left) == 0; gone != errors.Is(err, unix.ENOENT) {
			t.Errorf("%s: %v", c.ask, err)
		}
	}
}

// What is neither a file nor a directory, what is elsewhere, and the keeper's own state are refused.
func TestOddPaths(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "d/file", 10)
	must(t, os.Symlink("d", filepath.Join(dir, "link")))
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	k := scanned(t, dir)
	nothing := func(Removal) error { t.Error("something is removed"); return nil }
	for at, says := range map[string]string{
		"link": "neither a file nor a directory", "pipe": "neither a file nor a directory", "link/file": "not a directory",
		".kv3fs": "not permitted", ".kv3fs/keeper-rules": "not permitted", "../x": "relative to the data directory", "/etc/passwd": "relative to the data directory",
		"a\x00b": "relative to the data directory", "d/file/x": "not a directory", "d/nothing": "no such file", strings.Repeat("x", 300): "file name too long",
	} {
		if err := k.Evict(t.Context(), Selection{Patterns: []string{at}}, false, nothing); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("evict %q: %v; want %q", at, err, says)
		}
		if _, err := k.Describe(at); err == nil {
			t.Errorf("describe %q: no error", at)
		}
	}
	// An error of whoever gets the answer ends it.
	stop := errors.New("stop")
	if err := k.List(t.Context(), Query{}, func(Listed) error { return stop }); err != stop {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.List(ctx, Query{}, func(Listed) error { return nil }); err != context.Canceled {
		t.Error(err)
	}
}

// broken files are listed with what is wrong, below what is asked for.
func TestListBroken(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, gdsName, 4096) // without its side file
	put(t, dir, entry(1), 0)
	put(t, dir, entry(2), 4096)
	k := scanned(t, dir)
	for pattern, want := range map[string][]string{".": {gdsName, entry(1)}, "66": {gdsName}, "a?/*": {entry(1)}, entry(1): {entry(1)}, entry(2): nil} {
		var got []string
		must(t, k.List(t.Context(), Query{Selection: Selection{Patterns: []string{pattern}}, Broken: true}, func(l Listed) error {
			if l.Trouble == "" {
				t.Errorf("%+v", l)
			}
			got = append(got, l.Path)
			return nil
		}))
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %q; want %q", pattern, got, want)
		}
	}
}

// Answers about many files take little memory. KV3FS_SOAK_FILES says how many there are; the log
// says how long they took.
func TestManyFiles(t *testing.T) {
	count, dir := 3000, t.TempDir()
	if text := os.Getenv("KV3FS_SOAK_FILES"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		count = n
		dir, err = os.MkdirTemp("/dev/shm", "kv3fs-many-")
		must(t, err)
		defer os.RemoveAll(dir)
	}
	for n := range count {
		at := filepath.Join(dir, fmt.Sprintf("m%d/meta-llama-SEP-L%d@1@0@%x@half.data", n%100, n%7, n))
		f, err := os.Create(at)
		if os.IsNotExist(err) {
			must(t, os.Mkdir(filepath.Dir(at), 0o700))
			f, err = os.Create(at)
		}
		must(t, err)
		must(t, f.Close())
	}
	k := scanned(t, dir)
	took := func(what string, fn func()) {
		t.Helper()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := time.Now()
		fn()
		elapsed := time.Since(began)
		runtime.ReadMemStats(&after)
		held := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("%s of %d files: %v, %d MiB allocated and not yet collected", what, count, elapsed, held>>20)
		if most := int64(100 << 20); held > most {
			t.Errorf("%s holds %d bytes; want at most %d", what, held, most)
		}
	}
	took("du", func() {
		n := 0
		must(t, k.Usage(t.Context(), ".", 1, func(Usage) error { n++; return nil }))
		if n != min(count, 100)+1 {
			t.Errorf("%d directories", n)
		}
	})
	took("du --by model", func() {
		groups, err := k.Groups(".")
		if err != nil || len(groups) != 7 {
			t.Errorf("%d groups, %v", len(groups), err)
		}
	})
	took("ls", func() {
		n := 0
		must(t, k.List(t.Context(), Query{}, func(Listed) error { n++; return nil }))
		if n != count {
			t.Errorf("%d files", n)
		}
	})
	took("ls --sort", func() {
		n := 0
		must(t, k.List(t.Context(), Query{Sort: "unused", Most: 100}, func(Listed) error { n++; return nil }))
		if n != 100 {
			t.Errorf("%d files", n)
		}
	})
	took("evict", func() {
		n := 0
		must(t, k.Evict(t.Context(), Selection{Patterns: []string{"."}}, false, func(r Removal) error {
			if n++; !r.Removed {
				t.Errorf("%+v", r)
			}
			return nil
		}))
		if n != count || k.inv.Root().Files() != 0 {
			t.Errorf("%d files, and %d are left", n, k.inv.Root().Files())
		}
	})
}
