package conformance

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// passthrough reports whether the daemon has said that it is on when it started.
func (w *world) passthrough() bool { return strings.Contains(w.Log(), `msg="passthrough is on`) }

// TestMappedAndRegistered holds a file open, registered with rings and mapped, all at once,
// on daemons of every kind. Both sides see what the other has written, and nothing that was
// written is undone; or the mapping is refused, and the daemon has said so when it started.
func TestMappedAndRegistered(t *testing.T) {
	daemontest.NeedRoot(t)
	for name, start := range map[string]func(*testing.T) (w *world, c *tool, shared bool){
		"passthrough": func(t *testing.T) (*world, *tool, bool) {
			w := start(t, daemontest.Options{})
			return w, w.tool(t), w.passthrough() // the kernel may have none
		},
		"direct": func(t *testing.T) (*world, *tool, bool) {
			w := start(t, daemontest.Options{Flags: []string{"--io", "direct"}})
			return w, w.tool(t), w.passthrough()
		},
		// The kernel writes with the rights of who opened the file first, so a second user's
		// bytes take the way through the daemon, except those of mappings.
		"open by root and a user": func(t *testing.T) (*world, *tool, bool) {
			w := start(t, daemontest.Options{})
			f, err := os.OpenFile(w.Mount+"/f", os.O_RDWR|os.O_CREATE, 0o666)
			must(t, err)
			t.Cleanup(func() { f.Close() })
			must(t, f.Chmod(0o666))
			return w, w.toolAs(t, alice), w.passthrough()
		},
		"off": func(t *testing.T) (*world, *tool, bool) {
			w := start(t, daemontest.Options{Flags: []string{"--passthrough", "off"}})
			return w, w.tool(t), false
		},
		"ordinary user": func(t *testing.T) (*world, *tool, bool) {
			nobody := nobodyWithHelper(t)
			w := start(t, daemontest.Options{UID: nobody})
			return w, w.toolAs(t, nobody), false
		},
		"user namespace":      inUserNamespace,
		"data on another 3FS": onAnother,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, c, shared := start(t)
			if said := w.passthrough(); said != shared || !said && !strings.Contains(w.Log(), `msg="passthrough is off`) {
				t.Errorf("the start says passthrough=%v, want %v\n%s", said, shared, w.Log())
			}
			heldMappings(t, w, c, shared)
		})
	}
}

func nobodyWithHelper(t *testing.T) uint32 {
	if _, err := exec.LookPath("fusermount3"); err != nil {
		daemontest.NotTested(t, "a mount without root: "+err.Error())
	}
	who, err := user.Lookup("nobody") // the helper wants a user with a name
	if err != nil {
		daemontest.NotTested(t, "a mount without root: "+err.Error())
	}
	id, err := strconv.Atoi(who.Uid)
	must(t, err)
	return uint32(id)
}

// inUserNamespace starts a daemon that is root in a user namespace only, as in a rootless
// container.
func inUserNamespace(t *testing.T) (*world, *tool, bool) {
	for _, program := range []string{"unshare", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			daemontest.NotTested(t, "a user namespace: "+err.Error())
		}
	}
	if out, err := exec.Command("unshare", "--user", "--map-root-user", "--mount", "true").CombinedOutput(); err != nil {
		daemontest.NotTested(t, "a user namespace: "+string(out))
	}
	script := daemontest.NewDir(t) + "/kv3fs"
	must(t, os.WriteFile(script, []byte("#!/bin/sh\nexec unshare --user --map-root-user --mount "+kv3fs(t)+` "$@"`+"\n"), 0o755))
	w := start(t, daemontest.Options{Binary: script})
	pid := strconv.Itoa(w.PID())
	return w, startTool(t, exec.Command("nsenter", "-t", pid, "--user", "--mount", "--preserve-credentials", usrbioTool(t))), false
}

// onAnother starts a daemon whose data directory is on the mount of another.
func onAnother(t *testing.T) (*world, *tool, bool) {
	below := start(t, daemontest.Options{})
	must(t, os.Mkdir(below.Mount+"/data", 0o777))
	w := start(t, daemontest.Options{Data: below.Mount + "/data"})
	return w, w.tool(t), false
}

func heldMappings(t *testing.T, w *world, c *tool, shared bool) {
	const page = 4096
	c.ok("open f %s/f rdwr,creat", w.Mount)
	c.ok("pwrite f 0 %d 1", 8*page)
	c.ok("reg f")
	c.ok("iovcreate v %s %d 0 -1", w.Mount, page)
	c.ok("iorcreate w %s 4 w 0 -1", w.Mount)
	c.ok("iorcreate2 r %s 4 r 0 -1 -1", w.Mount)
	move := func(ring string, off, n int64) {
		t.Helper()
		c.ok("prep %s v %s 0 f %d %d 1", ring, ring, off, n)
		c.ok("submit %s", ring)
		if got := c.ok("wait %s 1 1 30000", ring).cqes(t); got[0].result != n {
			t.Errorf("%s: %+v", ring, got)
		}
	}
	holds := func(what, mem string, off, n int64, seed uint64) {
		t.Helper()
		if a := c.do("check %s %d %d %d", mem, off, n, seed); a.code != 0 {
			t.Errorf("%s: %s", what, a.line)
		}
	}

	a := c.do("map m f %d shared", 8*page)
	if want := map[bool]int{true: 0, false: int(unix.ENODEV)}[shared]; a.code != want {
		t.Errorf("MAP_SHARED: %s, want err %d", a.line, want)
	}
	if a.code == 0 {
		c.ok("fill m 0 2048 2") // a page that is dirty from here on
		move("r", 0, 2048)
		holds("a ring reads what was stored", "v", 0, 2048, 2)
		c.ok("fill v 0 2048 3")
		move("w", 2048, 2048)
		holds("the mapping shows what a ring wrote", "m", 2048, 2048, 3)
		c.ok("fsync f")
		move("r", 2048, 2048)
		holds("after the page was written back, a ring reads what a ring wrote", "v", 0, 2048, 3)
		fileHolds(t, w.Data+"/f", 0, 2048, 2)
		fileHolds(t, w.Data+"/f", 2048, 2048, 3)
	} else {
		c.fails(int(unix.ENODEV), "map m f %d readable", 8*page)
	}

	c.ok("map p f %d private", 8*page)
	holds("a private mapping", "p", 0, 2048, map[bool]uint64{true: 2, false: 1}[shared])
	holds("a private mapping", "p", 4*page, page, 1+4*page)
	c.ok("fill v 0 %d 4", page)
	move("w", 4*page, page)
	holds("a private mapping shows what a ring wrote", "p", 4*page, page, 4)
	c.ok("pwrite f %d %d 5", 5*page, page)
	holds("a private mapping shows what was written through the mount", "p", 5*page, page, 5)
	c.ok("fill p 0 %d 6", page)
	move("r", 6*page, page)
	holds("a ring reads", "v", 0, page, 1+6*page)
	fileHolds(t, w.Data+"/f", 4*page, page, 4)

	c.ok("iordestroy w")
	c.ok("iordestroy r")
	c.ok("iovdestroy v")
	c.die()
}

// TestTimesAfterStores checks that the times and blocks of a file are those that it has in
// the data directory at once after stores through a mapping, of which no daemon is told.
func TestTimesAfterStores(t *testing.T) {
	w := start(t, daemontest.Options{Flags: []string{"--attr-timeout", "1h", "--entry-timeout", "1h"}})
	if !w.passthrough() {
		daemontest.NotTested(t, "shared mappings: there is no passthrough here")
	}
	const size = 1 << 20
	for name, c := range map[string]struct{ created, closed bool }{
		"open": {}, "closed after mmap": {closed: true}, "created": {created: true}, "created, closed after mmap": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := w.dir(t) + "/f"
			if !c.created {
				must(t, os.WriteFile(path, nil, 0o644))
				sameTimes(t, w, path) // what the kernel keeps from before the open must not stay either
			}
			f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
			must(t, err)
			defer f.Close()
			must(t, os.Truncate(w.behind(path), size)) // the mount is not told of this either
			if sameTimes(t, w, path).Size() != size {
				t.Error("the size is old")
			}
			m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			if c.closed {
				must(t, f.Close())
			}
			long := time.Unix(1600000000, 0)
			for i := range 3 {
				must(t, os.Chtimes(path, long, long))
				for range 2 { // looks that the kernel could remember
					sameTimes(t, w, path)
				}
				copy(m[i<<16:], pattern(1<<16, uint64(i)))
				if sameTimes(t, w, path).ModTime().Equal(long) {
					t.Error("the stores have changed no time")
				}
				must(t, unix.Msync(m, unix.MS_SYNC))
				if sameTimes(t, w, path).Sys().(*syscall.Stat_t).Blocks == 0 {
					t.Error("the stores have taken no blocks")
				}
			}
			must(t, unix.Munmap(m))
			sameTimes(t, w, path)
		})
	}
}

// sameTimes returns a file's status, which must be that of the file in the data directory.
func sameTimes(t *testing.T, w *world, path string) os.FileInfo {
	t.Helper()
	front, err := os.Stat(path)
	must(t, err)
	back, err := os.Stat(w.behind(path))
	must(t, err)
	a, b := front.Sys().(*syscall.Stat_t), back.Sys().(*syscall.Stat_t)
	if !front.ModTime().Equal(back.ModTime()) || a.Blocks != b.Blocks || a.Ctim != b.Ctim {
		t.Errorf("the mount says %v, %v, %d blocks; the data directory %v, %v, %d blocks",
			front.ModTime(), a.Ctim, a.Blocks, back.ModTime(), b.Ctim, b.Blocks)
	}
	return front
}
