package rights

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

// What fallocate frees, zeroes or adds shows at once, however a client looks: with read, in
// its mappings, through a ring, in the file's status and in the data directory.
func TestFallocateIsCoherent(t *testing.T) {
	all := append(routes[:len(routes):len(routes)], []struct {
		name  string
		flags []string
	}{
		{"passthrough, direct rings", []string{"--io", "direct"}},
		{"through the daemon, buffered", []string{"--passthrough", "off", "--io", "buffered"}},
	}...)
	for i, route := range all {
		t.Run(route.name, func(t *testing.T) {
			if testing.Short() && i > 0 {
				t.Skip("one way is enough")
			}
			data := hostile.NewData(t)
			d := serve(t, data, route.flags...)
			fallocateIsCoherent(t, data, d.Mount)
		})
	}
}

func fallocateIsCoherent(t *testing.T, data, mount string) {
	const page, size = 4096, 64 * 4096
	path := filepath.Join(mount, "f")
	want := bytes.Repeat([]byte{'x'}, size)
	if err := os.WriteFile(path, want, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // no block is still to be allocated
		t.Fatal(err)
	}
	mappings := map[string][]byte{}
	for name, how := range map[string]int{"shared": unix.MAP_SHARED, "private": unix.MAP_PRIVATE} {
		m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, how|unix.MAP_POPULATE)
		switch {
		case err == unix.ENODEV && name == "shared": // without passthrough
		case err != nil:
			t.Fatal(err)
		default:
			mappings[name] = m
			defer unix.Munmap(m)
		}
	}
	c := &client{mount: mount}
	defer c.close()
	check := func(what string) {
		t.Helper()
		same := func(way string, got []byte) {
			t.Helper()
			if !bytes.Equal(got, want) {
				at := 0
				for at < min(len(got), len(want)) && got[at] == want[at] {
					at++
				}
				t.Errorf("%s, %s: wrong from byte %d of %d", what, way, at, len(got))
			}
		}
		got := make([]byte, len(want)+1)
		n, _ := f.ReadAt(got, 0)
		same("read", got[:n])
		for name, m := range mappings {
			if !bytes.Equal(m, want[:size]) {
				t.Errorf("%s: the %s mapping is wrong", what, name)
			}
		}
		moved, err := c.ring(path, false, int64(len(want)), 0)
		if err != nil {
			t.Fatalf("%s: ring: %v", what, err)
		}
		same("ring", c.mem.Bytes()[:moved])
		below, err := os.ReadFile(filepath.Join(data, "f"))
		if err != nil {
			t.Fatal(err)
		}
		same("data directory", below)
		var shown, is unix.Stat_t
		if err := unix.Stat(path, &shown); err != nil {
			t.Fatal(err)
		}
		if err := unix.Stat(filepath.Join(data, "f"), &is); err != nil {
			t.Fatal(err)
		}
		if shown.Size != is.Size || shown.Blocks != is.Blocks || shown.Mtim != is.Mtim {
			t.Errorf("%s: the mount says %d bytes, %d blocks, time %v; the file has %d, %d, %v", what, shown.Size, shown.Blocks, shown.Mtim, is.Size, is.Blocks, is.Mtim)
		}
	}
	change := func(what string, mode uint32, off, length int64) {
		t.Helper()
		if err := unix.Fallocate(int(f.Fd()), mode, off, length); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	check("before")
	change("punch", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 2*page, 4*page)
	clear(want[2*page : 6*page])
	check("punched")
	change("punch in part", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8*page+100, page)
	clear(want[8*page+100 : 9*page+100])
	check("punched in part")
	change("zero", unix.FALLOC_FL_ZERO_RANGE, 20*page, 4*page)
	clear(want[20*page : 24*page])
	check("zeroed")
	// A write into the hole, through a ring, and the same hole once more.
	fill := bytes.Repeat([]byte{'y'}, 4*page)
	copy(c.mem.Bytes(), fill)
	if n, err := c.ring(path, true, int64(len(fill)), 2*page); err != nil || n != int64(len(fill)) {
		t.Fatalf("ring: %d, %v", n, err)
	}
	copy(want[2*page:], fill)
	check("filled")
	change("punch again", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 2*page, 4*page)
	clear(want[2*page : 6*page])
	check("punched again")
	change("keep the size", unix.FALLOC_FL_KEEP_SIZE, size, 8*page)
	check("kept its size")
	change("extend", 0, size, 16*page)
	want = append(want, make([]byte, 16*page)...)
	check("extended")
}

// fallocate obeys what bounds a file: the limit of the caller's process, and the mark that
// bytes may only be added.
func TestFallocateLimits(t *testing.T) {
	data := hostile.NewData(t)
	d := serve(t, data)
	u := hostile.NewUser(t)
	got := map[string]outcome{}
	for _, dir := range []string{d.Mount, data} {
		path := filepath.Join(dir, "f"+filepath.Base(dir))
		if err := os.WriteFile(path, []byte("content"), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		got[dir] = do(t, u, "", step{Op: "fallocate-limited", Path: path, N: 4096})[0]

		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		onDisk, err := os.Open(filepath.Join(data, filepath.Base(path)))
		if err != nil {
			t.Fatal(err)
		}
		defer onDisk.Close()
		const appendOnly = 0x20
		mark := func(flags int) error {
			return unix.IoctlSetPointerInt(int(onDisk.Fd()), unix.FS_IOC_SETFLAGS, flags)
		}
		flags, err := unix.IoctlGetInt(int(onDisk.Fd()), unix.FS_IOC_GETFLAGS)
		if err == nil {
			err = mark(flags | appendOnly)
		}
		if err != nil {
			t.Logf("NOT TESTED: append-only files: %v", err)
			continue
		}
		for mode, want := range map[uint32]error{0: nil, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE: unix.EPERM, unix.FALLOC_FL_KEEP_SIZE: nil} {
			if err := unix.Fallocate(int(f.Fd()), mode, 0, 4096); !errors.Is(err, want) {
				t.Errorf("%s: append-only, mode %#x: %v, want %v", path, mode, err, want)
			}
		}
		if err := mark(flags); err != nil {
			t.Error(err)
		}
	}
	if want := (outcome{Errno: unix.EFBIG}); got[d.Mount] != want || got[data] != want {
		t.Errorf("beyond the limit of the process: %v", got)
	}
}
