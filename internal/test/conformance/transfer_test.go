package conformance

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/usrbio"
)

// Cases 27 to 60 and 77 to 84: requests and their results.

func readsOneMiB(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", pattern(3<<20, 4)), "rdonly")
	b, r := l.buffer(1<<20, 0), l.ring(ringOptions{entries: 8})
	index, errno := r.prep(b, 0, f, 0, 1<<20, 0xfeedface12345678)
	if index != 0 || errno != 0 {
		t.Fatal(index, errno)
	}
	r.submit()
	if got := r.wait(1, 1, patience); !slices.Equal(got, []cqe{{0, 1 << 20, 0xfeedface12345678}}) {
		t.Errorf("%+v", got)
	}
	holds(t, b, 0, 1<<20, 4)
}

func ringFull(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	for i := range 4 {
		if index, errno := r.prep(b, 0, f, 0, 10, 1); index != i || errno != 0 {
			t.Errorf("%d: %d, %v", i, index, errno)
		}
	}
	// A slot that is not reaped is busy, whether the request was executed or not.
	for range 3 {
		if _, errno := r.prep(b, 0, f, 0, 10, 1); errno != syscall.EAGAIN {
			t.Errorf("the fifth: %v", errno)
		}
		r.submit()
	}
	if got := r.wait(8, 4, patience); len(got) != 4 {
		t.Errorf("%+v", got)
	}
	if index, errno := r.prep(b, 0, f, 0, 10, 1); index != 0 || errno != 0 {
		t.Error(index, errno)
	}
}

func lowestIndexFirst(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	for range 4 {
		r.prep(b, 0, f, 0, 10, 1)
	}
	r.submit()
	var free []int
	for !slices.Contains(free, 1) {
		got := r.wait(1, 1, patience)
		if len(got) != 1 {
			t.Fatalf("%+v", got)
		}
		free = append(free, got[0].index)
	}
	slices.Sort(free)
	for _, want := range free {
		if index, errno := r.prep(b, 0, f, 0, 10, 1); index != want || errno != 0 {
			t.Errorf("index %d, %v; want %d", index, errno, want)
		}
	}
	if _, errno := r.prep(b, 0, f, 0, 10, 1); errno != syscall.EAGAIN {
		t.Error(errno)
	}
}

func endOfFile(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", pattern(1000, 6)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	expect(t, 1000, r, b, 0, f, 0, 4096)
	holds(t, b, 0, 1000, 6)
	expect(t, 0, r, b, 0, f, 1000, 4096)
	expect(t, 0, r, b, 0, f, 5000, 4096)
	expect(t, 1, r, b, 0, f, 999, 4096)
}

// holed creates a file whose first chunk is a hole and whose second has a pattern.
func holed(t *testing.T, w *world) string {
	t.Helper()
	f, err := os.Create(w.dir(t) + "/holed")
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt(pattern(chunk, 8), chunk)
	must(t, err)
	return f.Name()
}

func holeReadsAsZeros(t *testing.T, w *world, l library) {
	f := l.open(holed(t, w), "rdonly")
	b, r := l.buffer(2*chunk+4096, 0), l.ring(ringOptions{entries: 4})
	b.fill(0, 2*chunk+4096, 99)
	expect(t, 2*chunk, r, b, 0, f, 0, 2*chunk+4096)
	if !b.zeros(0, chunk) {
		t.Error("the hole does not read as zeros")
	}
	holds(t, b, chunk, chunk, 8)
}

func holeForbidden(t *testing.T, w *world, l library) {
	f := l.open(holed(t, w), "rdonly")
	b, r := l.buffer(2*chunk, 0), l.ring(ringOptions{entries: 4, flags: 2})
	expect(t, -int64(syscall.ENODATA), r, b, 0, f, 0, 2*chunk)
	expect(t, -int64(syscall.ENODATA), r, b, 0, f, chunk-4096, 8192)
	expect(t, chunk, r, b, 0, f, chunk, chunk) // no hole in it
	expect(t, 0, r, b, 0, f, 2*chunk, 4096)    // beyond the end is not a hole
	holds(t, b, 0, chunk, 8)
}

// Changed: upstream answers 0 to a request that lies in a hole entirely.
func insideHole(t *testing.T, w *world, l library) {
	f := l.open(holed(t, w), "rdonly")
	b := l.buffer(chunk, 0)
	b.fill(0, chunk, 99)
	expect(t, chunk, l.ring(ringOptions{entries: 4}), b, 0, f, 0, chunk)
	if !b.zeros(0, chunk) {
		t.Error("the hole does not read as zeros")
	}
	expect(t, -int64(syscall.ENODATA), l.ring(ringOptions{entries: 4, flags: 2}), b, 0, f, 0, chunk)
}

// Changed: upstream answers 0 at the start.
func sparseGiB(t *testing.T, w *world, l library) {
	path := write(t, w.dir(t)+"/f", nil)
	must(t, os.Truncate(path, 1<<30))
	f := l.open(path, "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	for _, off := range []int64{0, 1 << 29, 1<<30 - 4096} {
		b.fill(0, 4096, 99)
		expect(t, 4096, r, b, 0, f, off, 4096)
		if !b.zeros(0, 4096) {
			t.Error("the hole does not read as zeros at", off)
		}
	}
}

const tenMiB = 10 << 20

// grown writes 20 MiB to a new file through a ring.
func grown(t *testing.T, w *world, l library) (path string, f file) {
	path = w.dir(t) + "/f"
	f = l.open(path, "rdwr,creat")
	if info, err := os.Stat(path); err != nil || info.Size() != 0 { // the kernel caches attributes now
		t.Fatal(info, err)
	}
	b, r := l.buffer(tenMiB, 0), l.ring(ringOptions{entries: 4, write: true})
	b.fill(0, tenMiB, 12)
	expect(t, tenMiB, r, b, 0, f, 0, tenMiB)
	expect(t, tenMiB, r, b, 0, f, tenMiB, tenMiB)
	return path, f
}

func wantSize(t *testing.T, path string, want int64) {
	t.Helper()
	if info, err := os.Stat(path); err != nil || info.Size() != want {
		t.Errorf("size %d, %v; want %d", info.Size(), err, want)
	}
}

func writesExtend(t *testing.T, w *world, l library) {
	path, _ := grown(t, w, l)
	fileHolds(t, path, 0, tenMiB, 12)
	fileHolds(t, path, tenMiB, tenMiB, 12)
}

// Better than required: exact at once, even before the forced sync.
func sizeAfterForceFsync(t *testing.T, w *world, l library) {
	path, f := grown(t, w, l)
	wantSize(t, path, 2*tenMiB)
	if f, ok := f.(*cFile); ok {
		f.l.ok("force_fsync %s", f.name)
	} else {
		c := w.tool(t)
		c.ok("open f %s rdonly", path)
		c.ok("force_fsync f")
	}
	wantSize(t, path, 2*tenMiB)
}

func sizeAfterFsync(t *testing.T, w *world, l library) {
	path, f := grown(t, w, l)
	f.fsync()
	wantSize(t, path, 2*tenMiB)
}

func sizeAfterClose(t *testing.T, w *world, l library) {
	path, f := grown(t, w, l)
	f.close()
	wantSize(t, path, 2*tenMiB)
	fileHolds(t, path, tenMiB, tenMiB, 12)
}

func wrongOpenMode(t *testing.T, w *world, l library) {
	path := write(t, w.dir(t)+"/f", make([]byte, 4096))
	b := l.buffer(4096, 0)
	r, wr := l.ring(ringOptions{entries: 4}), l.ring(ringOptions{entries: 4, write: true})
	if _, errno := wr.prep(b, 0, l.open(path, "rdonly"), 0, 10, 1); errno != syscall.EACCES {
		t.Errorf("write to O_RDONLY: %v", errno)
	}
	if _, errno := r.prep(b, 0, l.open(path, "wronly"), 0, 10, 1); errno != syscall.EACCES {
		t.Errorf("read from O_WRONLY: %v", errno)
	}
	both := l.open(path, "rdwr")
	expect(t, 10, r, b, 0, both, 0, 10)
	expect(t, 10, wr, b, 0, both, 0, 10)
}

func wrongDirection(t *testing.T, w *world, c *tool) {
	c.ok("open f %s rdwr,creat", w.dir(t)+"/f")
	c.ok("reg f")
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("iorcreate w %s 4 w 0 -1", w.Mount)
	c.fails(-int(syscall.EINVAL), "prep w v r 0 f 0 10 1")
	c.fails(-int(syscall.EINVAL), "prep r v w 0 f 0 10 1")
}

func wrongRange(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 4096)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	for _, x := range [][2]int64{{0, 0}, {4096, 0}, {-1, 10}, {4096, 1}, {4000, 97}, {0, 4097}, {1 << 40, 1}, {0, 1<<63 - 1}} {
		if _, errno := r.prep(b, x[0], f, 0, x[1], 1); errno != syscall.EINVAL {
			t.Errorf("%d bytes at %d of 4096: %v", x[1], x[0], errno)
		}
	}
	expect(t, 96, r, b, 4000, f, 0, 96) // nothing was queued, and the ring works
}

func unregisteredC(t *testing.T, w *world, c *tool) {
	c.ok("open f %s rdwr,creat", w.dir(t)+"/f")
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.fails(-int(syscall.EBADF), "prep r v r 0 f 0 10 1")
	c.ok("reg f")
	c.ok("prep r v r 0 f 0 10 1")
	c.ok("dereg f")
	c.fails(-int(syscall.EBADF), "prep r v r 0 f 0 10 1")
	c.fails(-int(syscall.EINVAL), "prep r v r 0 2000000000 0 10 1")
}

func unregisteredGo(t *testing.T, w *world) {
	l := newGoLibrary(t, w)
	f := l.open(w.dir(t)+"/f", "rdwr,creat").(*goFile)
	must(t, f.r.Close(context.Background()))
	if _, errno := l.ring(ringOptions{entries: 4}).prep(l.buffer(4096, 0), 0, f, 0, 10, 1); errno != syscall.EBADF {
		t.Error(errno)
	}
}

// rawSetup returns a tool with a file f (4 KiB), an iov v (64 KiB) and a ring r of 8.
func rawSetup(t *testing.T, w *world, c *tool) (ino int64) {
	c.ok("open f %s rdonly", write(t, w.dir(t)+"/f", pattern(4096, 2)))
	c.ok("iovcreate v %s 65536 0 -1", w.Mount)
	c.ok("iorcreate r %s 8 r 0 -1", w.Mount)
	return c.ok("fstat f").num(t, "ino")
}

// rawResult submits and checks the results of the requests, in the order of their indexes:
// completions may come in any order.
func rawResult(t *testing.T, c *tool, want ...int64) {
	t.Helper()
	c.ok("submit r")
	got := c.ok("raw_reap r 8 %d 30000", len(want)).cqes(t)
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	slices.SortFunc(got, func(a, b cqe) int { return a.index - b.index })
	for i, q := range got {
		if q.result != want[i] || q.userdata != uint64(q.index+40) || i > 0 && q.index == got[i-1].index {
			t.Errorf("%+v, want result %d", q, want[i])
		}
	}
}

func unknownBuffer(t *testing.T, w *world, c *tool) {
	ino := rawSetup(t, w, c)
	c.ok("raw_prep r 0 %s 0 %d 0 10 40", wire.NewUUID(), ino)
	rawResult(t, c, -int64(syscall.EINVAL))
}

func unknownFile(t *testing.T, w *world, c *tool) {
	rawSetup(t, w, c)
	for _, ino := range []string{"123456789012345", "0", "0xfffffffffffffffe", "0xffffffff7ffffffe", "0x8000000000000000"} {
		c.ok("raw_prep r 0 v 0 %s 0 10 40", ino)
		rawResult(t, c, -int64(syscall.EBADF))
	}
	// A directory is not a regular file; the root is inode 1.
	c.ok("raw_prep r 0 v 0 1 0 10 40")
	rawResult(t, c, -int64(syscall.EBADF))
	c.ok("iorcreate w %s 4 w 0 -1", w.Mount)
	c.ok("raw_prep w 0 v 0 1 0 10 40") // ends upstream's daemon
	c.ok("submit w")
	if got := c.ok("raw_reap w 1 1 30000").cqes(t); got[0].result != -int64(syscall.EBADF) {
		t.Errorf("%+v", got)
	}
}

func beyondBuffer(t *testing.T, w *world, c *tool) {
	ino := rawSetup(t, w, c)
	c.ok("raw_prep r 0 v 65000 %d 0 1000 40", ino)
	c.ok("raw_prep r 1 v 65536 %d 0 1 41", ino) // upstream does not check the second
	c.ok("raw_prep r 2 v 0xffffffffffffffff %d 0 2 42", ino)
	c.ok("raw_prep r 3 v 0 %d 0 0xffffffffffffffff 43", ino)
	c.ok("raw_prep r 4 v 65436 %d 0 100 44", ino)
	inval := -int64(syscall.EINVAL)
	rawResult(t, c, inval, inval, inval, inval, 100)
	c.ok("raw_prep r 0 v 65536 %d 0 0 40", ino) // no bytes at the very end
	rawResult(t, c, 0)
}

func crossesBlockRaw(t *testing.T, w *world, c *tool) {
	c.ok("open f %s rdonly", write(t, w.dir(t)+"/f", pattern(8192, 2)))
	c.ok("reg f")
	c.ok("iovcreate v %s %d %d -1", w.Mount, 3<<20, 1<<20)
	c.ok("iorcreate r %s 8 r 0 -1", w.Mount)
	result := func(off int64) int64 {
		c.ok("prep r v r %d f 0 8192 1", off) // the library leaves the check to the daemon
		c.ok("submit r")
		return c.ok("wait r 1 1 30000").cqes(t)[0].result
	}
	if got := result(1<<20 - 4096); got != -int64(syscall.EINVAL) {
		t.Error(got)
	}
	for _, off := range []int64{1 << 20, 0, 2<<20 - 8192} {
		if got := result(off); got != 8192 {
			t.Error(off, got)
		}
	}
	c.ok("check v %d 8192 2", 1<<20)
}

func crossesBlockGo(t *testing.T, w *world) {
	l := newGoLibrary(t, w)
	f := l.open(write(t, w.dir(t)+"/f", pattern(8192, 2)), "rdonly")
	b, r := l.buffer(3<<20, 1<<20), l.ring(ringOptions{entries: 4})
	if _, errno := r.prep(b, 1<<20-4096, f, 0, 8192, 1); errno != syscall.EINVAL {
		t.Error(errno)
	}
	expect(t, 8192, r, b, 1<<20, f, 0, 8192)
	holds(t, b, 1<<20, 8192, 2)
}

// Changed: upstream fails the whole batch with EIO; both succeed here.
func overlappingReads(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", pattern(1<<20, 2)), "rdonly")
	b, r := l.buffer(1<<20, 0), l.ring(ringOptions{entries: 8})
	r.prep(b, 0, f, 0, 8192, 1)
	r.prep(b, 4096, f, 4096, 8192, 2)
	r.submit()
	got := r.wait(2, 2, patience)
	if len(got) != 2 || got[0].result != 8192 || got[1].result != 8192 {
		t.Errorf("%+v", got)
	}
	holds(t, b, 0, 12288, 2)
}

func readonlyUser(t *testing.T) {
	w := shared(t)
	const uid = 22048
	c := w.toolAs(t, uid)
	path := w.dir(t) + "/f"
	c.ok("open f %s rdwr,creat", path)
	c.ok("reg f")
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate w %s 4 w 0 -1", w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("prep w v w 0 f 0 100 1")
	c.ok("submit w")
	if got := c.ok("wait w 1 1 30000").cqes(t); got[0].result != 100 {
		t.Errorf("%+v", got)
	}
	c.ok("symlink true %s", w.virtual("set-conf/usr.readonly"))
	c.ok("prep w v w 0 f 0 100 1")
	c.ok("submit w")
	if got := c.ok("wait w 1 1 30000").cqes(t); got[0].result != -int64(syscall.EROFS) {
		t.Errorf("%+v", got)
	}
	c.ok("prep r v r 0 f 0 100 1")
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 100 {
		t.Errorf("%+v", got)
	}
	for _, flags := range []string{"wronly", "rdwr", "rdonly,trunc", "rdonly,append"} {
		c.fails(int(syscall.EROFS), "open g %s %s", path, flags)
	}
	c.fails(int(syscall.EROFS), "open g %s2 rdonly,creat", path)
	c.fails(int(syscall.EROFS), "unlink %s", path)
	c.fails(int(syscall.EROFS), "symlink %s %s", path, w.virtual("rm-rf/x"))
	c.ok("open g %s rdonly", path)
	// Changed: a registration is not a file. Upstream does not let it be removed.
	id := wire.NewUUID().String()
	c.ok("shm m kv3fs-%s 4096", id)
	c.ok("symlink /dev/shm/kv3fs-%s %s", id, w.iovs(id))
	c.ok("shm_unlink kv3fs-%s", id)
	c.ok("unlink %s", w.iovs(id))
	c.ok("iordestroy w")
	if a := c.ok("list %s", w.iovs("")); len(a.rest) != 5 { // v, r and three semaphores
		t.Error(a.line)
	}
	c2 := w.tool(t) // other clients are not affected
	c2.ok("open f %s rdwr,creat", w.dir(t)+"/f")
}

func fixedDepth(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 8, depth: 4, priority: 1})
	for range 3 {
		r.prep(b, 0, f, 0, 10, 1)
	}
	r.submit()
	if got := r.wait(4, 1, 100*time.Millisecond); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	r.prep(b, 0, f, 0, 10, 1)
	r.submit()
	if got := r.wait(4, 4, patience); len(got) != 4 {
		t.Errorf("%+v", got)
	}
}

func negativeDepth(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 8, depth: -4})
	r.prep(b, 0, f, 0, 10, 1)
	r.prep(b, 0, f, 0, 10, 2)
	r.submit()
	if got := r.wait(4, 2, patience); len(got) != 2 {
		t.Errorf("%+v", got)
	}
}

// Changed: the timer works as upstream intended. There a partial batch waits for ever.
func negativeDepthTimer(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 8, depth: -4, timeoutMs: 20})
	partial := func(r ring, tries int) (took []time.Duration) { // sorted, because a busy machine may be late
		for range tries {
			began := time.Now()
			r.prep(b, 0, f, 0, 10, 1)
			r.prep(b, 0, f, 0, 10, 2)
			r.submit()
			if got := r.wait(4, 2, patience); len(got) != 2 {
				t.Fatalf("%+v", got)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took
	}
	if took := partial(r, 5); took[0] < 15*time.Millisecond || took[0] > 200*time.Millisecond {
		t.Errorf("2 of 4 after %v, want about 20 ms", took)
	}
	// A daemon whose timer does not fire finds the requests when it visits the
	// ring for another reason, every 50 ms. A timeout far below that distinguishes
	// the two.
	if took := partial(l.ring(ringOptions{entries: 8, depth: -4, timeoutMs: 5}), 11); took[0] < 4*time.Millisecond || took[5] > 30*time.Millisecond {
		t.Errorf("2 of 4 after %v, want about 5 ms", took)
	}
	// Four do not wait.
	for range 4 {
		r.prep(b, 0, f, 0, 10, 1)
	}
	r.submit()
	if got := r.wait(4, 4, patience); len(got) != 4 {
		t.Errorf("%+v", got)
	}
}

func slowFirst(t *testing.T) {
	w, disk := slowDisk(t)
	throughBoth(t, w, func(t *testing.T, l library) {
		slow, healthy := l.open(w.Mount+"/disk/slow", "rdonly"), l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
		b := l.buffer(8192, 0)
		for name, r := range map[string]ring{"one job": l.ring(ringOptions{entries: 4}), "two jobs": l.ring(ringOptions{entries: 4, depth: -1})} {
			release := disk.hang()
			r.prep(b, 0, slow, 0, 100, 11)
			if name == "two jobs" {
				r.submit()
				<-disk.hanging
			}
			r.prep(b, 4096, healthy, 0, 100, 22)
			r.submit()
			if name == "two jobs" {
				if got := r.wait(1, 1, patience); !slices.Equal(got, []cqe{{1, 100, 22}}) {
					t.Errorf("%s: %+v", name, got)
				}
			} else {
				<-disk.hanging
			}
			release()
			rest := r.wait(2, 1, patience)
			if name != "two jobs" && len(rest) < 2 {
				rest = append(rest, r.wait(2, 1, patience)...)
			}
			if i := slices.Index(rest, cqe{0, 100, 11}); i < 0 {
				t.Errorf("%s: %+v", name, rest)
			}
			r.close()
		}
	})
}

func pollReturnsAtOnce(t *testing.T, w *world, l library) {
	r := l.ring(ringOptions{entries: 4})
	took := within(t, patience, "wait for nothing", func() {
		for range 10 {
			if got := r.wait(4, 0, 20*time.Second); len(got) != 0 {
				t.Errorf("%+v", got)
			}
		}
	})
	if took > 10*time.Second {
		t.Error(took)
	}
}

func pastDeadline(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	if got := r.wait(4, 1, -time.Second); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	r.prep(b, 0, f, 0, 10, 1)
	r.submit()
	eventually(t, "completions that are ready are returned in spite of the deadline", func() bool { return len(r.wait(4, 1, -time.Second)) == 1 })
}

// lostPost checks a completion whose semaphore post was lost.
func lostPost(t *testing.T, w *world, c *tool) {
	f := write(t, w.dir(t)+"/f", make([]byte, 100))
	c.ok("open f %s rdonly", f)
	c.ok("reg f")
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate r %s 128 r 0 -1", w.Mount)
	c.ok("prep r v r 0 f 0 10 7")
	c.ok("submit r")
	eventually(t, "completed and posted", func() bool {
		m := c.ok("markers r")
		return m.num(t, "cqe_head") == 1 && m.num(t, "sem") == 1
	})
	c.ok("poke r 12400 00000000")
	took := within(t, patience, "wait", func() {
		if got := c.ok("wait r 1 1 10000").cqes(t); len(got) != 1 || got[0].userdata != 7 {
			t.Errorf("%+v", got)
		}
	})
	if took > 5*time.Second {
		t.Errorf("the completion was noticed after %v", took)
	}
}

func priorities(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
	b := l.buffer(4096, 0)
	for _, priority := range []int{-1, 0, 1} {
		r := l.ring(ringOptions{entries: 4, priority: priority})
		for range 20 {
			expect(t, 100, r, b, 0, f, 0, 4096)
		}
	}
}

func othersSubmit(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4, priority: 1})
	r.prep(b, 0, f, 0, 10, 5)
	other := w.tool(t)
	other.ok("iorcreate2 r %s 4 r 0 1 -1", w.Mount)
	other.ok("submit r")
	if got := r.wait(1, 1, patience); !slices.Equal(got, []cqe{{0, 10, 5}}) {
		t.Errorf("%+v", got)
	}
}

func registersOnce(t *testing.T, w *world, c *tool) {
	c.ok("open f %s rdonly", write(t, w.dir(t)+"/f", pattern(100, 1)))
	a := c.ok("reg f")
	if a.num(t, "ret") >= 0 {
		t.Error(a.line)
	}
	c.fails(int(syscall.EINVAL), "reg f")
	c.fails(int(syscall.EBADF), "reg 123456")
	c.fails(int(syscall.EBADF), "reg 2") // standard error is not on a 3FS
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("prep r v r 0 handle:f 0 100 1")
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 100 {
		t.Errorf("%+v", got)
	}
	c.ok("dereg f")
	c.ok("reg f")
}

func registersAgainGo(t *testing.T, w *world) {
	m := w.client(t)
	f, err := os.Open(write(t, w.dir(t)+"/f", nil))
	must(t, err)
	defer f.Close()
	a, err := m.Register(context.Background(), f)
	must(t, err)
	b, err := m.Register(context.Background(), f) // its own value, not a number that could be reused
	must(t, err)
	if a == b || a.Ino() != inoOf(t, f) {
		t.Error(a.Ino(), b.Ino())
	}
	d, err := os.Open(w.Mount)
	must(t, err)
	defer d.Close()
	_, err = m.Register(context.Background(), d)
	wantErrno(t, "a directory", err, syscall.EINVAL)
}

func staleNumber(t *testing.T, w *world, c *tool) {
	dir := w.dir(t)
	one := c.ok("open f %s rdonly", write(t, dir+"/one", pattern(100, 1))).num(t, "fd")
	c.ok("reg f")
	c.ok("close f")
	if two := c.ok("open g %s rdonly", write(t, dir+"/two", pattern(100, 2))).num(t, "fd"); two != one {
		t.Fatalf("number %d, want %d", two, one)
	}
	c.fails(int(syscall.EINVAL), "reg g")
	c.ok("dereg g") // works, because the number is open on a 3FS again
	c.ok("reg g")
}

func originalClosed(t *testing.T, w *world, l library) {
	dir := w.dir(t)
	f := l.open(write(t, dir+"/one", pattern(100, 1)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	switch f := f.(type) {
	case *cFile:
		f.l.ok("close %s", f.name)
		f.l.ok("open other %s rdonly", write(t, dir+"/two", pattern(100, 2)))
	case *goFile:
		must(t, f.f.Close())
	}
	must(t, os.Remove(dir+"/one"))
	expect(t, 100, r, b, 0, f, 0, 4096)
	holds(t, b, 0, 100, 1)
}

// Changed: mount and rings see the same bytes; upstream's ring does not read what
// write(2) has not flushed.
func unflushedWrite(t *testing.T, w *world, l library) {
	path := w.dir(t) + "/f"
	f := l.open(path, "rdwr,creat")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	g, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer g.Close()
	_, err = g.Write(pattern(100, 3))
	must(t, err)
	expect(t, 100, r, b, 0, f, 0, 4096)
	holds(t, b, 0, 100, 3)
	must(t, g.Sync())
	expect(t, 100, r, b, 0, f, 0, 4096)
	// And the other way round, with a descriptor that has read before.
	wr := l.ring(ringOptions{entries: 4, write: true})
	b.fill(0, 100, 4)
	got := make([]byte, 100)
	if _, err := g.ReadAt(got, 0); err != nil || string(got) != string(pattern(100, 3)) {
		t.Error(err)
	}
	expect(t, 100, wr, b, 0, f, 0, 100)
	if _, err := g.ReadAt(got, 0); err != nil || string(got) != string(pattern(100, 4)) {
		t.Error("the mount serves stale bytes", err)
	}
}

// emptySliceAndIdleWait makes the ring calls behind case 79's Python calls.
func emptySliceAndIdleWait(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	if _, errno := r.prep(b, 0, f, 0, 0, 1); errno != syscall.EINVAL {
		t.Error(errno)
	}
	if got := r.wait(4, 1, 100*time.Millisecond); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// priorityInName checks that the C library puts the priority into the name; only the
// Python client ignores it.
func priorityInName(t *testing.T) {
	w := shared(t)
	c := w.toolAs(t, 22080)
	for priority, want := range map[int]string{-1: ".r0.ph.t0", 0: ".r0.t0", 1: ".r0.pl.t0"} {
		id := c.ok("iorcreate2 r%d %s 4 r 0 %d -1", priority, w.Mount, priority).kv["uuid"]
		if a := c.ok("list %s", w.iovs("")); !slices.Contains(a.rest, id+want) {
			t.Errorf("no %s in %s", id+want, a.line)
		}
	}
}

// sliceOffsets makes the ring calls behind case 81's slice of a slice.
func sliceOffsets(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", pattern(100, 3)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	b.fill(0, 4096, 99)
	expect(t, 100, r, b, 512, f, 0, 100)
	holds(t, b, 512, 100, 3)
	holds(t, b, 0, 512, 99)
	holds(t, b, 612, 3484, 99+612)
}

func openedByID(t *testing.T) {
	w := shared(t)
	a, b := w.toolAs(t, alice), w.toolAs(t, alice)
	id := a.ok("iovcreate v %s 8192 4096 -1", w.Mount).kv["uuid"]
	a.ok("fill v 0 8192 6")
	b.ok("iovopen v %s %s 8192 4096 -1", id, w.Mount)
	b.ok("check v 0 8192 6")
	b.ok("fill v 0 8192 7")
	a.ok("check v 0 8192 7")
	b.fails(-int(syscall.ENOENT), "iovopen x %s %s 8192 0 -1", id, w.Mount) // other block size, other name
	other := w.toolAs(t, bob)
	other.fails(-int(syscall.EPERM), "iovopen v %s %s 8192 4096 -1", id, w.Mount)
	w.tool(t).fails(-int(syscall.EPERM), "iovopen v %s %s 8192 4096 -1", id, w.Mount)
}

func openedByIDGo(t *testing.T, w *world) {
	a, b := w.client(t), w.client(t)
	v, err := a.NewIov(context.Background(), 8192, usrbio.IovOptions{BlockBytes: 4096})
	must(t, err)
	copy(v.Bytes(), pattern(8192, 6))
	u, err := b.OpenIov(context.Background(), v.ID(), usrbio.IovOptions{BlockBytes: 4096})
	must(t, err)
	if string(u.Bytes()) != string(pattern(8192, 6)) {
		t.Error("wrong bytes")
	}
	_, err = b.OpenIov(context.Background(), v.ID(), usrbio.IovOptions{})
	wantErrno(t, "other block size", err, syscall.ENOENT)
	if os.Geteuid() == 0 {
		c := w.toolAs(t, alice)
		id := c.ok("iovcreate v %s 8192 0 -1", w.Mount).kv["uuid"]
		theirs, err := usrbio.ParseID(id)
		must(t, err)
		_, err = b.OpenIov(context.Background(), theirs, usrbio.IovOptions{})
		wantErrno(t, "another user's", err, syscall.EPERM)
	}
}

func oneBigRead(t *testing.T, w *world, l library) {
	const fileBytes, iovBytes = 18<<20 + 777, 16 << 20
	f := l.open(write(t, w.dir(t)+"/f", pattern(fileBytes, 1000)), "rdonly")
	b, r := l.buffer(iovBytes, 0), l.ring(ringOptions{entries: 4})
	expect(t, iovBytes, r, b, 0, f, 0, iovBytes)
	holds(t, b, 0, iovBytes, 1000)
	const off, n, at = 1234567, iovBytes - 98765, 4321
	b.fill(0, iovBytes, 5)
	expect(t, n, r, b, at, f, off, n)
	holds(t, b, at, n, 1000+off)
	holds(t, b, 0, at, 5)
	holds(t, b, at+n, iovBytes-at-n, 5+at+n)
	// The same as a write.
	path := w.dir(t) + "/w"
	g := l.open(path, "rdwr,creat")
	expect(t, n, l.ring(ringOptions{entries: 4, write: true}), b, at, g, off, n)
	fileHolds(t, path, off, n, 1000+off)
	wantSize(t, path, off+n)
}

func hugeOffset(t *testing.T, w *world, c *tool) {
	ino := rawSetup(t, w, c)
	c.ok("reg f")
	c.ok("prep r v r 0 f 0x8000000000000000 10 9")
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != -int64(syscall.EFBIG) {
		t.Errorf("%+v", got)
	}
	_ = ino
}

func hugeOffsetGo(t *testing.T, w *world) {
	l := newGoLibrary(t, w)
	f := l.open(write(t, w.dir(t)+"/f", make([]byte, 10)), "rdonly")
	if _, errno := l.ring(ringOptions{entries: 4}).prep(l.buffer(4096, 0), 0, f, -1<<63, 10, 1); errno != syscall.EINVAL {
		t.Error(errno) // a negative int64 never reaches the ring
	}
	expect(t, 0, l.ring(ringOptions{entries: 4}), l.buffer(4096, 0), 0, f, 1<<62, 10)
}

// shell runs a shell command and returns its output.
func shell(t *testing.T, script string) (string, error) {
	t.Helper()
	var out []byte
	var err error
	within(t, patience, script, func() { out, err = exec.Command("/bin/sh", "-c", script).CombinedOutput() })
	return strings.TrimSpace(string(out)), err
}
