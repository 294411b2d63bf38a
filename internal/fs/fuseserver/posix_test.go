package fuseserver

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/wire"
)

func ioctl(fd uintptr, cmd uintptr, arg uintptr) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, cmd, arg)
	return errno
}

func ioctlBytes(fd uintptr, cmd uintptr, b []byte) syscall.Errno {
	defer runtime.KeepAlive(b)
	return ioctl(fd, cmd, uintptr(unsafe.Pointer(&b[0])))
}

func TestFilesAndDirectories(t *testing.T) { // R20, R21, R23, R24, R25, R26, R28, R34
	both(t, func(t *testing.T, w *world) {
		w.write("a", "hello")
		w.want("a", "hello")
		if err := os.Mkdir(w.path("d"), 0o744); err != nil {
			t.Fatal(err)
		}
		wantErrno(t, "mkdir again", os.Mkdir(w.path("d"), 0o755), unix.EEXIST)
		old := time.Unix(1600000000, 123456789)
		if err := os.Chtimes(w.path("a"), old, old); err != nil {
			t.Fatal(err)
		}
		held, err := os.Open(w.path("a"))
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		long := "d/" + strings.Repeat("k", 240) + "@%'-"
		if err := os.Rename(w.path("a"), w.path(long)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(w.path("a")); !os.IsNotExist(err) {
			t.Errorf("the old name: %v", err)
		}
		if info, _ := os.Stat(w.path(long)); !info.ModTime().Equal(old) {
			t.Errorf("mtime %v after rename", info.ModTime())
		}
		w.write("b", "replaced")
		if err := os.Rename(w.path("b"), w.path(long)); err != nil {
			t.Fatal(err)
		}
		w.want(long, "replaced")
		buf := make([]byte, 10)
		if n, _ := held.ReadAt(buf, 0); string(buf[:n]) != "hello" {
			t.Errorf("unlinked and open: %q", buf[:n])
		}
		if info, err := held.Stat(); err != nil || info.Size() != 5 {
			t.Errorf("stat unlinked and open: %v", err)
		}
		f, err := os.OpenFile(w.path("big"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if err := f.Truncate(1 << 40); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if info, _ := f.Stat(); info.Size() != 1<<40 {
			t.Errorf("size %d", info.Size())
		}
		wantErrno(t, "rmdir full", unix.Rmdir(w.path("d")), unix.ENOTEMPTY)
		wantErrno(t, "truncate root", unix.Truncate(w.dir, 0), unix.EISDIR)
		if err := unix.Chmod(w.path("big"), 0o4711); err != nil {
			t.Error(err)
		}
		var st unix.Stat_t
		unix.Stat(w.path("big"), &st)
		var back unix.Stat_t
		unix.Stat(filepath.Join(w.data, "big"), &back)
		if st.Mode&0o7777 != 0o4711 || st.Ino != back.Ino || st.Blksize != 1<<20 {
			t.Errorf("%+v", st)
		}
	})
}

func TestRefusedOperations(t *testing.T) { // R22, case 76
	both(t, func(t *testing.T, w *world) {
		w.write("f", "x")
		f, _ := os.OpenFile(w.path("f"), os.O_RDWR, 0)
		defer f.Close()
		for _, mode := range []uint32{unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_COLLAPSE_RANGE, unix.FALLOC_FL_INSERT_RANGE} {
			wantErrno(t, "fallocate", unix.Fallocate(int(f.Fd()), mode, 0, 4096), unix.EOPNOTSUPP)
		}
		wantErrno(t, "mkfifo", unix.Mkfifo(w.path("p"), 0o644), unix.ENOSYS)
		wantErrno(t, "renameat2", unix.Renameat2(unix.AT_FDCWD, w.path("f"), unix.AT_FDCWD, w.path("g"), unix.RENAME_WHITEOUT), unix.EINVAL)
		for _, name := range []string{"trusted.x", "security.x", "user.kv3fs.flags"} {
			wantErrno(t, name, unix.Setxattr(w.path("f"), name, []byte("1"), 0), unix.ENOTSUP)
			wantErrno(t, name, unix.Removexattr(w.path("f"), name), unix.EPERM)
			_, err := unix.Getxattr(w.path("f"), name, nil)
			wantErrno(t, name, err, unix.ENODATA)
		}
		w.settings.readonly.Store(true)
		defer w.settings.readonly.Store(false)
		_, err := os.OpenFile(w.path("f"), os.O_RDWR, 0)
		wantErrno(t, "readonly open", err, unix.EROFS) // case 48
		wantErrno(t, "readonly mkdir", os.Mkdir(w.path("d"), 0o755), unix.EROFS)
		wantErrno(t, "readonly fallocate", unix.Fallocate(int(f.Fd()), 0, 0, 4096), unix.EROFS)
		wantErrno(t, "readonly xattr", unix.Setxattr(w.path("f"), "user.x", []byte("1"), 0), unix.EROFS)
		wantErrno(t, "readonly xattr", unix.Removexattr(w.path("f"), "user.x"), unix.EROFS)
		_, err = unix.Open(w.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		wantErrno(t, "readonly O_TMPFILE", err, unix.EROFS)
	})
}

func TestAppendTruncDirectAndMmap(t *testing.T) { // R20, R29, R30
	both(t, func(t *testing.T, w *world) {
		w.write("f", "0123456789")
		f, err := os.OpenFile(w.path("f"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString("ab")
		f.Close()
		w.want("f", "0123456789ab")
		f, _ = os.OpenFile(w.path("f"), os.O_RDWR|os.O_TRUNC, 0)
		defer f.Close()
		if info, _ := f.Stat(); info.Size() != 0 {
			t.Errorf("size %d after O_TRUNC", info.Size())
		}
		f.Truncate(8192)
		// In another process: a page fault of this one blocks the processor that
		// would have to answer it.
		child := exec.Command("/proc/self/exe", w.path("f"))
		child.Env = append(os.Environ(), "KV3FS_TEST_CHILD=mmap")
		out, err := child.CombinedOutput()
		shared := w.m.WhyNoPassthrough() == ""
		if shared != (err == nil) || !shared && !strings.Contains(string(out), unix.ENODEV.Error()) {
			t.Fatalf("mmap, shared=%v: %s", shared, out)
		}
		buf := make([]byte, 6)
		if f.ReadAt(buf, 4096); string(buf) != "mapped" && shared {
			t.Errorf("read %q", buf)
		}
		d, err := os.OpenFile(w.path("f"), os.O_RDWR|unix.O_DIRECT|unix.O_NOATIME, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		page, _ := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		copy(page, "direct")
		if _, err := d.WriteAt(page, 0); err != nil {
			t.Errorf("O_DIRECT: %v", err)
		}
		if f.ReadAt(buf, 0); string(buf) != "direct" {
			t.Errorf("read %q", buf)
		}
		big := make([]byte, 3<<20+17)
		for i := range big {
			big[i] = byte(i * 7)
		}
		w.write("big", string(big))
		w.want("big", string(big))
	})
}

func TestRingAndMountSeeTheSame(t *testing.T) { // R11, R12, cases 36 to 38, design 3.2
	both(t, func(t *testing.T, w *world) {
		path := w.write("f", "mount")
		f, _ := os.OpenFile(path, os.O_RDWR, 0)
		defer f.Close()
		ino := func() (st unix.Stat_t) { unix.Stat(path, &st); return st }
		r, err := w.tree.Acquire(ino().Ino, cred.Caller{}, true)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		for size := int64(10); size < 20; size++ {
			unix.Pwrite(r.FD(), []byte("r"), size-1)
			r.Written()
			if got := ino().Size; got != size {
				t.Fatalf("stat says %d after a ring wrote up to %d", got, size)
			}
			buf := make([]byte, 1)
			if f.ReadAt(buf, size-1); buf[0] != 'r' {
				t.Fatalf("mount reads %q", buf)
			}
		}
		f.WriteAt([]byte("M"), 3)
		q, err := w.tree.Acquire(ino().Ino, cred.Caller{}, false)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Release()
		buf := make([]byte, 5)
		if unix.Pread(q.FD(), buf, 0); string(buf) != "mouMt" {
			t.Errorf("ring reads %q", buf)
		}
		a, _ := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		unix.Pwrite(r.FD(), []byte("r"), 29)
		r.Written()
		a.WriteString("tail")
		a.Close()
		if got := ino().Size; got != 34 {
			t.Errorf("append after a ring's write: size %d", got)
		}
	})
}

func TestPassthroughIsUsed(t *testing.T) {
	w := newWorld(t, Options{})
	f, err := os.Create(w.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if why := w.m.WhyNoPassthrough(); why != "" {
		t.Skip("no passthrough here: " + why)
	}
	n := 0
	w.m.fs.passthrough.mu.Lock()
	for _, r := range w.m.fs.passthrough.nodes {
		r.chosen.Do(func() {}) // has been done: what it has set is seen from here on
		if r.kernel {
			n++
		}
	}
	w.m.fs.passthrough.mu.Unlock()
	if n != 1 {
		t.Errorf("%d files in passthrough", n)
	}
	// Without the daemon's handle the kernel still writes: the daemon gets no request.
	w.m.fs.handles.mu.Lock()
	saved := w.m.fs.handles.open
	w.m.fs.handles.open = map[uint64]openHandle{}
	w.m.fs.handles.mu.Unlock()
	_, err = f.WriteAt([]byte("kernel"), 0)
	w.m.fs.handles.mu.Lock()
	w.m.fs.handles.open = saved
	w.m.fs.handles.mu.Unlock()
	if err != nil {
		t.Errorf("a write reached the daemon: %v", err)
	}
}

func TestIoctls(t *testing.T) { // R2, cases 7, 9, 10, 73, 74, 75
	both(t, func(t *testing.T, w *world) {
		w.write("f", strings.Repeat("x", 3<<20))
		os.MkdirAll(w.path("d/sub"), 0o755)
		for _, p := range []string{"f", "d", ".", "3fs-virt"} {
			f, err := os.Open(w.path(p))
			if err != nil {
				t.Fatal(err)
			}
			var b [4]byte
			if e := ioctlBytes(f.Fd(), wire.IoctlGetMagic, b[:]); e != 0 || binary.LittleEndian.Uint32(b[:]) != wire.Magic {
				t.Errorf("%s: magic %x %v", p, b, e)
			}
			if e := ioctl(f.Fd(), wire.IoctlFsync, 1); e != 0 {
				t.Errorf("%s: fsync with a wild pointer: %v", p, e)
			}
			if e := ioctl(f.Fd(), 0x6863, 0); e != unix.EINVAL {
				t.Errorf("%s: unknown: %v", p, e)
			}
			f.Close()
		}
		f, _ := os.OpenFile(w.path("f"), os.O_RDWR, 0)
		defer f.Close()
		punch := make([]byte, wire.PunchHoleBytes)
		punch[0] = 1
		binary.LittleEndian.PutUint64(punch[8016:], 1<<20)
		if e := ioctlBytes(f.Fd(), wire.IoctlPunchHole, punch); e != 0 {
			t.Errorf("punch: %v", e)
		}
		var one [1]byte
		if f.ReadAt(one[:], 5); one[0] != 0 {
			t.Error("the hole has data")
		}
		binary.LittleEndian.PutUint64(punch[16:], 1)
		if e := ioctlBytes(f.Fd(), wire.IoctlPunchHole, punch); e != unix.EINVAL {
			t.Errorf("unaligned punch: %v", e)
		}
		var st unix.Stat_t
		unix.Stat(w.path("d"), &st)
		d, _ := os.Open(w.path("d"))
		defer d.Close()
		link := make([]byte, wire.HardlinkBytes)
		binary.LittleEndian.PutUint64(link, 1)
		copy(link[8:], "hard")
		os.Stat(w.path("hard")) // a negative entry, which must be dropped
		if e := ioctlBytes(f.Fd(), wire.IoctlHardlink, link); e != 0 {
			t.Errorf("hardlink: %v", e)
		}
		if _, err := os.Stat(w.path("hard")); err != nil {
			t.Error(err)
		}
		move := make([]byte, wire.MoveBytes)
		binary.LittleEndian.PutUint64(move, st.Ino+1)
		copy(move[8:], "sub")
		binary.LittleEndian.PutUint64(move[264:], 1)
		copy(move[272:], "moved")
		if e := ioctlBytes(d.Fd(), wire.IoctlMove, move); e != unix.EINVAL {
			t.Errorf("move from a wrong parent: %v", e)
		}
		binary.LittleEndian.PutUint64(move, st.Ino)
		if e := ioctlBytes(d.Fd(), wire.IoctlMove, move); e != 0 {
			t.Errorf("move: %v", e)
		}
		if _, err := os.Stat(w.path("moved")); err != nil {
			t.Error(err)
		}
		os.MkdirAll(w.path("d/full/x"), 0o755)
		remove := make([]byte, wire.RemoveBytes)
		binary.LittleEndian.PutUint64(remove, st.Ino)
		copy(remove[8:], "full")
		if e := ioctlBytes(d.Fd(), wire.IoctlRemove, remove); e != unix.ENOTEMPTY {
			t.Errorf("remove a full directory: %v", e)
		}
		remove[264] = 1
		if e := ioctlBytes(d.Fd(), wire.IoctlRemove, remove); e != 0 {
			t.Errorf("remove recursively: %v", e)
		}
		if e := ioctl(d.Fd(), wire.IoctlRecursiveRm, 1); e != 0 {
			t.Errorf("rm of an open directory: %v", e)
		}
		if _, err := os.Stat(w.path("d")); !os.IsNotExist(err) {
			t.Errorf("still there: %v", err)
		}
	})
}

func TestControlDirectory(t *testing.T) { // cases 11, 15, 67, 69, 70
	w := newWorld(t, Options{})
	os.Mkdir(filepath.Join(w.data, "3fs-virt"), 0o755) // shadowed
	w.write("z", "")
	entries, err := os.ReadDir(w.dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("root lists %v, %v", entries, err)
	}
	if entries, _ = os.ReadDir(w.path("3fs-virt")); len(entries) != 4 {
		t.Errorf("3fs-virt lists %v", entries)
	}
	var st unix.Stat_t
	if unix.Stat(w.path("3fs-virt/rm-rf"), &st); st.Ino != wire.InoRmRf || st.Mode != unix.S_IFDIR|0o777 {
		t.Errorf("%+v", st)
	}
	wantErrno(t, "mkdir", os.Mkdir(w.path("3fs-virt/iovs/x"), 0o755), unix.EPERM)
	if err := os.Symlink("/dev/shm/x", w.path("3fs-virt/iovs/key")); err != nil {
		t.Error(err)
	}
	if target, _ := os.Readlink(w.path("3fs-virt/iovs/key")); target != "/dev/shm/x" {
		t.Errorf("readlink %q", target)
	}
	if err := os.Remove(w.path("3fs-virt/iovs/key")); err != nil {
		t.Error(err)
	}
	for i := range 2 {
		os.MkdirAll(w.path("d/e"), 0o755)
		if err := os.Symlink(w.path("d"), w.path("3fs-virt/rm-rf/x")); err != nil {
			t.Errorf("rm-rf %d: %v", i, err)
		}
		if _, err := os.Stat(w.path("d")); !os.IsNotExist(err) {
			t.Errorf("after rm-rf: %v", err)
		}
	}
	wantErrno(t, "rm-rf off the mount", os.Symlink("/nowhere", w.path("3fs-virt/rm-rf/y")), unix.EINVAL)
	os.MkdirAll(w.path("d/e"), 0o755)
	if err := os.Rename(w.path("d"), w.path("3fs-virt/rm-rf/d")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(w.data, "d")); !os.IsNotExist(err) {
		t.Errorf("after mv into rm-rf: %v", err)
	}
	os.Mkdir(w.path("a"), 0o755)
	os.Mkdir(w.path("b"), 0o755)
	w.write("a/f", "moved")
	if err := os.Symlink("mv:"+w.path("a/f"), w.path("b/g")); err != nil {
		t.Fatal(err)
	}
	w.want("b/g", "moved")
	if _, err := os.Stat(w.path("a/f")); !os.IsNotExist(err) {
		t.Errorf("source after mv: %v", err)
	}
}

func TestAnotherUser(t *testing.T) { // R35
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	both(t, func(t *testing.T, w *world) {
		w.write("secret", "x")
		os.Chmod(w.path("secret"), 0o600)
		os.MkdirAll(w.path("closed/sub"), 0o755)
		os.Mkdir(w.path("open"), 0o777)
		os.Chmod(w.path("open"), 0o777)
		for _, c := range []struct {
			child string
			args  []string
			fails string
		}{
			{"read", []string{w.path("secret")}, "permission denied"},
			{"write", []string{w.path("closed/f")}, "permission denied"},
			{"write", []string{w.path("open/f")}, ""},
			{"read", []string{w.path("open/f")}, ""},
			{"mkdir", []string{w.path("open/d")}, ""},
			{"chmod", []string{w.path("secret")}, "not permitted"},
			{"rm-rf", []string{w.path("closed"), w.path("3fs-virt/rm-rf/x")}, "not permitted"},
			{"rm-rf", []string{w.path("open/d"), w.path("3fs-virt/rm-rf/y")}, ""},
		} {
			out, err := w.as(c.child, c.args...)
			if (err != nil) != (c.fails != "") || !strings.Contains(out, c.fails) {
				t.Errorf("%s %v: %s %v, want %q", c.child, c.args, out, err, c.fails)
			}
		}
		var st unix.Stat_t
		if unix.Stat(w.path("open/f"), &st); st.Uid != 12345 || st.Gid != 12345 || st.Mode&0o777 != 0o640 {
			t.Errorf("owner %d:%d mode %o", st.Uid, st.Gid, st.Mode)
		}
	})
}

func TestBigDirectoryWhileDeletingThroughTheMount(t *testing.T) { // R27
	w := newWorld(t, Options{})
	const files = 6000
	for i := range files {
		fd, err := unix.Open(fmt.Sprintf("%s/f%05d", w.data, i), unix.O_CREAT|unix.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	d, _ := os.Open(w.dir)
	defer d.Close()
	seen := map[string]bool{}
	for {
		entries, err := d.ReadDir(500)
		for _, e := range entries {
			if seen[e.Name()] {
				t.Errorf("%s twice", e.Name())
			}
			seen[e.Name()] = true
			if e.Type().IsRegular() {
				os.Remove(w.path(e.Name()))
			}
		}
		if err != nil {
			break
		}
	}
	if len(seen) != files+1 {
		t.Errorf("saw %d", len(seen))
	}
}

func TestRenameRaces(t *testing.T) { // R23
	both(t, func(t *testing.T, w *world) {
		w.write("target", "0")
		var wg sync.WaitGroup
		for g := range 3 {
			wg.Go(func() {
				for i := range 150 {
					tmp := w.path(fmt.Sprintf("tmp%d", g))
					os.WriteFile(tmp, []byte{byte('0' + i%10)}, 0o644)
					if err := os.Rename(tmp, w.path("target")); err != nil {
						t.Error(err)
					}
					if b, err := os.ReadFile(w.path("target")); err != nil || len(b) != 1 {
						t.Errorf("read %q, %v", b, err)
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestStatfsAndLocks(t *testing.T) { // R31, 7.5
	w := newWorld(t, Options{})
	var st unix.Statfs_t
	if err := unix.Statfs(w.dir, &st); err != nil || st.Bsize != 2<<20 || st.Frsize != 2<<20 || st.Namelen != 255 || st.Files != 0 || st.Blocks == 0 {
		t.Errorf("%+v %v", st, err)
	}
	os.Mkdir(w.path("d"), 0o755)
	buf := make([]byte, 256)
	_, err := unix.Getxattr(w.path("d"), lockName, buf)
	wantErrno(t, "not locked", err, unix.ENODATA)
	wantErrno(t, "unlock", unix.Setxattr(w.path("d"), lockName, []byte("unlock"), 0), unix.ENOLCK)
	wantErrno(t, "lock", unix.Setxattr(w.path("d"), lockName, []byte("try_lock"), 0), 0)
	if n, err := unix.Getxattr(w.path("d"), lockName, buf); err != nil || !strings.Contains(string(buf[:n]), `{"client":{"uuid":`) {
		t.Errorf("%q %v", buf[:max(n, 0)], err)
	}
}
