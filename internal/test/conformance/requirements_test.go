package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/usrbio"
)

// requirements are those of the known clients, by their numbers in the
// client survey: R1 to R16 for rings, R20 to R35 for the mount.
var requirements = map[int]check{
	1:  {what: "type, canonical path, no blanks", ways: sys(mountR1)},
	2:  {what: "magic on every descriptor", ways: c(magicC).and(goWay(magicGo))},
	3:  {what: "objects of any name, mapped at once", ways: c(anyObjectName)},
	4:  {what: "the grammar of link names", ways: sys(badItems).and(way("raw", func(t *testing.T) { itemsInAnyOrder(t, shared(t)) }))},
	5:  {what: "memory is released after an unlink and after a process ended", ways: way("sys", memoryReleased)},
	6:  {what: "submit semaphores for every uid", ways: way("c", semaphoresOfEach)},
	7:  {what: "exactly one completion each", ways: both(exactlyOnce)},
	8:  {what: "rings of every size, many, short-lived", ways: both(everySize).and(both64("many ")).and(way("churn c", churnC)).and(way("churn go", churnGo))},
	9:  {what: "sizes from 100 bytes at odd places to 2 GiB", ways: both(oddSizes).and(way("2 GiB", twoGiB)), alone: true},
	10: {what: "full results", ways: both(fullResults)},
	11: {what: "extension is seen at rename, close, fsync", ways: both(extensionSeen)},
	12: {what: "read after write", ways: both(readAfterWrite)},
	13: {what: "no request hangs", ways: way("disk", hungDisk)},
	14: {what: "objects of mode 0600 of any uid", ways: way("c", privateObject)},
	15: {what: "a 4 GiB iov registers fast", ways: c(fourGiB)},
	16: {what: "names removed by others", ways: both(nameRemoved)},

	20: {what: "open flags", ways: sys(openFlagsR20)},
	21: {what: "ftruncate to 1 TiB by 16 at once", ways: both(terabyte)},
	22: {what: "fallocate", ways: sys(fallocateR22)},
	23: {what: "rename", ways: both(renames)},
	24: {what: "unlinked while open", ways: both(unlinkedOpen)},
	25: {what: "mkdir", ways: sys(mkdirs)},
	26: {what: "stat and access", ways: both(statR26)},
	27: {what: "large directories", ways: sys(largeDirectory)},
	28: {what: "times", ways: sys(times)},
	29: {what: "mmap", ways: both(mmapR29)},
	30: {what: "O_DIRECT and Linux AIO", ways: sys(directR30).and(way("aio", aioR30))},
	31: {what: "statvfs", ways: sys(statfsR31)},
	32: {what: "fsync", ways: sys(fsyncR32)},
	33: {what: "inode numbers", ways: sys(inodesR33)},
	34: {what: "long names", ways: both(longNames)},
	35: {what: "several users", ways: way("c", severalUsers)},
}

func mountR1(t *testing.T, w *world) {
	mountinfoLine(t, w)
	real, err := filepath.EvalSymlinks(w.Mount)
	if err != nil || real != w.Mount {
		t.Errorf("canonical path %s, %v", real, err)
	}
	wantThere(t, w.virtual("iovs"))
	for _, cluster := range []string{"with blank", "", strings.Repeat("x", 32)} {
		top := daemontest.NewDir(t)
		cmd := exec.Command(kv3fs(t), "serve", "--data", top+"/data", "--mount", top+"/mnt", "--cluster", cluster)
		var out []byte
		var err error
		within(t, patience, "a refused cluster name", func() { out, err = cmd.CombinedOutput() })
		if err == nil || !bytes.Contains(out, []byte("cluster")) {
			t.Errorf("%q: %v\n%s", cluster, err, out)
		}
	}
}

func anyObjectName(t *testing.T, w *world, c *tool) {
	c.ok("open f %s rdonly", write(t, w.dir(t)+"/f", pattern(4096, 3)))
	c.ok("reg f")
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	for i, prefix := range []string{"psm_", "hf3fs-iov-", "3FSClient_", "nixl_hf3fs.", "rust os id "} {
		id, name := wire.NewUUID().String(), fmt.Sprintf("v%d", i)
		object := strings.ReplaceAll(prefix, " ", "_") + id
		c.ok("shm m%s %s 4096", name, object)
		c.ok("symlink /dev/shm/%s %s", object, w.iovs(id))
		c.ok("shm_unlink %s", object)
		c.ok("iovwrap %s m%s %s %s 4096 0 -1", name, name, id, w.Mount)
		c.ok("prep r %s r 0 f 0 4096 1", name)
		c.ok("submit r")
		if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 4096 {
			t.Errorf("%s: %+v", prefix, got)
		}
		c.ok("check %s 0 4096 3", name)
		c.ok("unlink %s", w.iovs(id))
	}
}

// mapped reports whether the daemon has an object of that name mapped.
func (w *world) mapped(t *testing.T, name string) bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", w.PID()))
	must(t, err)
	return strings.Contains(string(maps), name)
}

func memoryReleased(t *testing.T) {
	w := shared(t)
	for _, how := range []string{"unlink", "death"} {
		c := w.tool(t)
		c.ok("open f %s rdonly", write(t, w.dir(t)+"/f", pattern(16<<20, 3)))
		c.ok("reg f")
		uuid := c.ok("iovcreate v %s %d 0 -1", w.Mount, 16<<20).kv["uuid"]
		target := c.ok("readlink %s", w.iovs(uuid)).kv["target"]
		name := filepath.Base(target)
		c.ok("iorcreate r %s 16 r 0 -1", w.Mount)
		if !w.mapped(t, name) {
			t.Errorf("%s is not mapped", name)
		}
		c.ok("prep_many r v r 0 f 0 %d 16 0", 1<<20)
		c.ok("submit r")
		if how == "unlink" {
			c.ok("iovdestroy v")
			c.ok("wait r 16 16 30000")
		} else {
			c.die()
			os.Remove(target)
		}
		eventually(t, "the daemon releases the memory after "+how, func() bool { return !w.mapped(t, name) })
	}
}

func semaphoresOfEach(t *testing.T) {
	w := shared(t)
	for _, path := range semaphoresOf(t, w) {
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 || info.Size() != 32 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	daemontest.NeedRoot(t)
	dir := w.dir(t)
	c := w.toolAs(t, alice)
	c.ok("open f %s/f rdwr,creat", dir)
	c.ok("reg f")
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	for _, priority := range []int{-1, 0, 1} {
		c.ok("iorcreate2 r %s 4 w 0 %d -1", w.Mount, priority)
		c.ok("prep r v w 0 f 0 100 1")
		c.ok("submit r")
		if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 100 {
			t.Errorf("%+v", got)
		}
		c.ok("iordestroy r")
	}
}

func exactlyOnce(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", pattern(1<<16, 3)), "rdonly")
	b, r := l.buffer(1<<16, 0), l.ring(ringOptions{entries: 32})
	const total = 1500
	seen := map[uint64]bool{}
	owner := map[int]uint64{}
	for sent := uint64(0); len(seen) < total; {
		for sent < total {
			index, errno := r.prep(b, int64(sent%256)*256, f, int64(sent%256)*256, 1+int64(sent%256), sent) // userdata 0 is NULL
			if errno == syscall.EAGAIN {
				break
			}
			if _, busy := owner[index]; errno != 0 || busy {
				t.Fatal(index, errno, busy)
			}
			owner[index] = sent
			sent++
		}
		r.submit()
		got := r.wait(32, 1, patience)
		if len(got) == 0 {
			t.Fatalf("%d of %d", len(seen), total)
		}
		for _, q := range got {
			if seen[q.userdata] || owner[q.index] != q.userdata || q.result != 1+int64(q.userdata%256) {
				t.Fatalf("%+v for request %d", q, owner[q.index])
			}
			seen[q.userdata] = true
			delete(owner, q.index)
		}
	}
	if got := r.wait(32, 1, 50*time.Millisecond); len(got) != 0 {
		t.Errorf("more completions than requests: %+v", got)
	}
}

func everySize(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", pattern(4096, 3)), "rdonly")
	b := l.buffer(4096, 0)
	for _, o := range []ringOptions{
		{entries: 1}, {entries: 1, depth: 1}, {entries: 1, depth: -1}, {entries: 1, depth: -100, timeoutMs: 1},
		{entries: 1024}, {entries: 1024, depth: 8}, {entries: 1024, depth: -8, timeoutMs: 5}, {entries: 4096, depth: -1},
	} {
		r := l.ring(o)
		n := min(o.entries, 64)
		for i := range n {
			if index, errno := r.prep(b, 0, f, 0, 100, uint64(i)); index != i || errno != 0 {
				t.Fatalf("%+v: %d, %v", o, index, errno)
			}
		}
		r.submit()
		if got := r.wait(n, n, patience); len(got) != n {
			t.Errorf("%+v: %d of %d", o, len(got), n)
		}
		r.close()
	}
}

// both64 uses 64 rings and 64 iovs in one process.
func both64(prefix string) ways {
	many := func(t *testing.T, w *world, l library) {
		f := l.open(write(t, w.dir(t)+"/f", pattern(4096, 3)), "rdonly")
		var rings []ring
		var buffers []buffer
		for range 64 {
			rings, buffers = append(rings, l.ring(ringOptions{entries: 4})), append(buffers, l.buffer(4096, 0))
		}
		for i, r := range rings {
			if _, errno := r.prep(buffers[i], 0, f, 0, 4096, 1); errno != 0 {
				t.Fatal(errno)
			}
			r.submit()
		}
		for i, r := range rings {
			if got := r.wait(1, 1, patience); len(got) != 1 || got[0].result != 4096 {
				t.Errorf("%d: %+v", i, got)
			}
			holds(t, buffers[i], 0, 4096, 3)
		}
		for i := range rings {
			rings[i].close()
			buffers[i].close()
		}
	}
	all := ways{}
	for name, fn := range both(many) {
		all[prefix+name] = fn
	}
	return all
}

// churned returns how many rings are made one after the other: enough to see what each leaves.
func churned() int {
	if os.Getenv("KV3FS_SOAK") != "" {
		return 5000
	}
	if testing.Short() {
		return 200
	}
	return 500
}

// descriptors returns the number of descriptors that the daemon has open.
func (w *world) descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.PID()))
	must(t, err)
	return len(fds)
}

func churnC(t *testing.T) {
	w := start(t, daemontest.Options{})
	c := w.tool(t)
	c.ok("open f %s rdonly", write(t, w.Mount+"/f", pattern(100, 3)))
	c.ok("reg f")
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	before, churned := 0, churned()
	began := time.Now()
	for i := range churned {
		c.ok("iorcreate r %s 1 r 0 -1", w.Mount)
		c.ok("prep r v r 0 f 0 100 1")
		c.ok("submit r")
		if got := c.ok("wait r 1 1 30000").cqes(t); len(got) != 1 || got[0].result != 100 {
			t.Fatalf("%+v", got)
		}
		c.ok("iordestroy r")
		if i == 10 {
			before = w.descriptors(t)
		}
	}
	t.Logf("C library: %d rings made, used and destroyed per second", int(float64(churned)/time.Since(began).Seconds()))
	eventually(t, "the daemon closes the descriptors", func() bool { return w.descriptors(t) <= before+4 })
}

func churnGo(t *testing.T) {
	w := start(t, daemontest.Options{})
	m := w.client(t)
	must(t, os.WriteFile(w.Mount+"/f", pattern(100, 3), 0o644))
	f, err := os.Open(w.Mount + "/f")
	must(t, err)
	defer f.Close()
	file, err := m.Register(context.Background(), f)
	must(t, err)
	iov, err := m.NewIov(context.Background(), 4096, usrbio.IovOptions{})
	must(t, err)
	before, churned := 0, churned()
	began := time.Now()
	for i := range churned {
		r, err := m.NewRing(context.Background(), usrbio.RingOptions{Entries: 1})
		must(t, err)
		q := []usrbio.Request{{File: file, Iov: iov, Bytes: 100}}
		must(t, r.Do(withDeadline(t, patience), q))
		must(t, q[0].Err())
		must(t, r.Close(context.Background()))
		if i == 10 {
			before = w.descriptors(t)
		}
	}
	t.Logf("usrbio: %d rings made, used and closed per second", int(float64(churned)/time.Since(began).Seconds()))
	eventually(t, "the daemon closes the descriptors", func() bool { return w.descriptors(t) <= before+4 })
}

func oddSizes(t *testing.T, w *world, l library) {
	for _, flags := range []string{"rdwr,creat", "rdwr,creat,direct"} {
		path := w.dir(t) + "/f"
		f := l.open(path, flags)
		b, r, wr := l.buffer(4<<20, 0), l.ring(ringOptions{entries: 4}), l.ring(ringOptions{entries: 4, write: true})
		b.fill(0, 4<<20, 5)
		for _, x := range [][3]int64{{100, 7, 100}, {3, 100, 333}, {4096, 4096, 4096}, {1<<20 + 1, 4095, 1 << 20}, {0, 8192, 131072}} {
			bufOff, fileOff, n := x[0], x[1], x[2]
			expect(t, n, wr, b, bufOff, f, fileOff, n)
			b.fill(bufOff, n, 1)
			expect(t, n, r, b, bufOff, f, fileOff, n)
			holds(t, b, bufOff, n, 5+uint64(bufOff))
			b.fill(0, 4<<20, 5)
		}
	}
}

// twoGiB reads more than one system call can move.
func twoGiB(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 2 GiB of memory")
	}
	w := start(t, daemontest.Options{Flags: []string{"--deadline", "25s"}})
	var st unix.Statfs_t
	must(t, unix.Statfs("/dev/shm", &st))
	const n = 2<<30 + 8192
	if free := int64(st.Bavail) * st.Bsize; free < 2*n {
		daemontest.NotTested(t, fmt.Sprintf("a 2 GiB buffer: /dev/shm has %d bytes left", free))
	}
	path := w.Mount + "/f"
	must(t, os.WriteFile(path, nil, 0o644))
	must(t, os.Truncate(path, n+100))
	g, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer g.Close()
	_, err = g.WriteAt(pattern(8192, 6), n-8192)
	must(t, err)
	l := newGoLibrary(t, w)
	f := l.open(path, "rdonly")
	b, r := l.buffer(n, 0), l.ring(ringOptions{entries: 4})
	b.fill(0, 4096, 1)
	expect(t, n, r, b, 0, f, 0, n)
	holds(t, b, n-8192, 8192, 6)
	if !b.zeros(0, 4096) || !b.zeros(1<<31-4096, 4096) {
		t.Error("the hole does not read as zeros")
	}
	b.close()
}

func fullResults(t *testing.T, w *world, l library) {
	path := w.dir(t) + "/f"
	f := l.open(path, "rdwr,creat")
	b, r, wr := l.buffer(1<<20, 0), l.ring(ringOptions{entries: 64}), l.ring(ringOptions{entries: 64, write: true})
	// Many at once, each of its own size; every other one leaves a hole.
	b.fill(0, 1<<20, 5)
	for i := range int64(32) {
		if _, errno := wr.prep(b, i*8192, f, i*20000, 1+i*251, uint64(1+i*251)); errno != 0 {
			t.Fatal(errno)
		}
	}
	wr.submit()
	for _, q := range wr.wait(32, 32, patience) {
		if q.result != int64(q.userdata) || q.result == 0 {
			t.Errorf("%+v", q)
		}
	}
	end := int64(31*20000 + 1 + 31*251)
	wantSize(t, path, end)
	for i := range int64(32) { // ranges that begin in data and end in a hole, inside the file
		if _, errno := r.prep(b, i*16384, f, i*19000, 15000, 15000); errno != 0 {
			t.Fatal(errno)
		}
	}
	r.submit()
	for _, q := range r.wait(32, 32, patience) {
		if q.result != int64(q.userdata) {
			t.Errorf("%+v", q)
		}
	}
	expect(t, 10, r, b, 0, f, end-10, 4096) // short at the end only
}

func extensionSeen(t *testing.T, w *world, l library) {
	dir := w.dir(t)
	b, wr := l.buffer(1<<20, 0), l.ring(ringOptions{entries: 4, write: true})
	b.fill(0, 1<<20, 7)
	for _, at := range []string{"completion", "rename", "close", "fsync"} {
		path := dir + "/" + at
		f := l.open(path, "rdwr,creat")
		wantSize(t, path, 0)
		expect(t, 123456, wr, b, 0, f, 0, 123456)
		switch at {
		case "rename": // before close
			must(t, os.Rename(path, path+"2"))
			path += "2"
		case "close":
			f.close()
		case "fsync":
			f.fsync()
		}
		wantSize(t, path, 123456)
		g, err := os.Open(path)
		must(t, err)
		if info, err := g.Stat(); err != nil || info.Size() != 123456 {
			t.Errorf("%s: %v, %v", at, info.Size(), err)
		}
		g.Close()
		fileHolds(t, path, 0, 123456, 7)
	}
}

func readAfterWrite(t *testing.T, w *world, l library) {
	path := w.dir(t) + "/f"
	f := l.open(path, "rdwr,creat")
	b, wr := l.buffer(65536, 0), l.ring(ringOptions{entries: 4, write: true})
	other := newGoLibrary(t, w) // another client; for the Go library another connection
	g := other.open(path, "rdonly")
	b2, r2 := other.buffer(65536, 0), other.ring(ringOptions{entries: 4})
	held, err := os.Open(path)
	must(t, err)
	defer held.Close()
	got := make([]byte, 65536)
	for round := range uint64(100) { // one page, used again and again
		b.fill(0, 65536, round)
		expect(t, 65536, wr, b, 0, f, 65536, 65536)
		expect(t, 65536, r2, b2, 0, g, 65536, 65536)
		holds(t, b2, 0, 65536, round)
		if _, err := held.ReadAt(got, 65536); err != nil || !bytes.Equal(got, pattern(65536, round)) {
			t.Fatalf("round %d: the mount has other bytes, %v", round, err)
		}
	}
}

func privateObject(t *testing.T) {
	w := shared(t)
	dir := w.dir(t)
	c := w.toolAs(t, alice)
	id := wire.NewUUID().String()
	c.ok("shm m psm_%s 4096", id) // mode 0600
	info, err := os.Stat("/dev/shm/psm_" + id)
	must(t, err)
	if info.Mode() != 0o600 {
		t.Fatal(info.Mode())
	}
	// Another user cannot register it under a name of its own.
	mine := wire.NewUUID().String()
	w.toolAs(t, bob).fails(int(syscall.EACCES), "symlink /dev/shm/psm_%s %s", id, w.iovs(mine))
	c.ok("symlink /dev/shm/psm_%s %s", id, w.iovs(id))
	c.ok("shm_unlink psm_%s", id)
	c.ok("iovwrap v m %s %s 4096 0 -1", id, w.Mount)
	c.ok("fill v 0 4096 3")
	c.ok("open f %s/f rdwr,creat", dir)
	c.ok("reg f")
	c.ok("iorcreate r %s 4 w 0 -1", w.Mount)
	c.ok("prep r v w 0 f 0 4096 1")
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 4096 {
		t.Errorf("%+v", got)
	}
	fileHolds(t, dir+"/f", 0, 4096, 3)
	// Changed: a ring is served as its own uid. Another uid's buffer is EACCES,
	// upstream moves the bytes.
	b := w.toolAs(t, bob)
	b.ok("open f %s/f rdonly", dir)
	ino := b.ok("fstat f").num(t, "ino")
	b.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	b.ok("raw_prep r 0 %s 0 %d 0 100 40", id, ino)
	rawResult(t, b, -int64(syscall.EACCES))
	// The same for a file that it may not open.
	must(t, os.WriteFile(dir+"/secret", pattern(100, 1), 0o600))
	root, err := os.Open(dir + "/secret")
	must(t, err)
	defer root.Close()
	b.ok("iovcreate v %s 4096 0 -1", w.Mount)
	b.ok("raw_prep r 1 v 0 %d 0 100 41", inoOf(t, root))
	rawResult(t, b, -int64(syscall.EACCES))
}

func fourGiB(t *testing.T, w *world, c *tool) {
	const size = 4 << 30
	id := wire.NewUUID().String()
	c.ok("shm m kv3fs-%s %d", id, int64(size))
	defer c.ok("shm_unlink kv3fs-%s", id)
	began := time.Now()
	c.ok("symlink /dev/shm/kv3fs-%s %s", id, w.iovs(id))
	took := time.Since(began)
	t.Logf("registered in %v", took)
	if took > time.Second {
		t.Errorf("registering took %v", took)
	}
	c.ok("iovwrap v m %s %s %d 0 -1", id, w.Mount, int64(size))
	c.ok("open f %s rdonly", write(t, w.dir(t)+"/f", pattern(4096, 3)))
	c.ok("reg f")
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("prep r v r %d f 0 4096 1", int64(size-4096))
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 4096 {
		t.Errorf("%+v", got)
	}
	c.ok("check v %d 4096 3", int64(size-4096))
	c.ok("unlink %s", w.iovs(id))
}

// nameRemoved checks that a ring works after a clean-up script removed its name.
func nameRemoved(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", pattern(4096, 3)), "rdonly")
	r := l.ring(ringOptions{entries: 4})
	b := l.buffer(4096, 0)
	var target string
	switch b := b.(type) {
	case *cBuffer:
		id := b.l.ok("info %s", b.name)
		target = b.l.ok("readlink %s", w.iovs(canonical(t, id.kv["id"]))).kv["target"]
	case *goBuffer:
		to, err := os.Readlink(w.iovs(b.v.ID().String()))
		must(t, err)
		target = to
	}
	must(t, os.Remove(target))
	expect(t, 4096, r, b, 0, f, 0, 4096)
	holds(t, b, 0, 4096, 3)
	b.close() // works although the name is gone
}

// canonical puts the dashes into 32 hexadecimal digits.
func canonical(t *testing.T, id string) string {
	t.Helper()
	if len(id) == 36 {
		return id
	}
	if len(id) != 32 {
		t.Fatalf("id %q", id)
	}
	return strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]}, "-")
}

// ---- the mount ----

func openFlagsR20(t *testing.T, w *world) {
	dir := w.dir(t)
	old := unix.Umask(0o022)
	unix.Umask(old)
	for i, x := range []struct {
		flags int
		mode  os.FileMode
	}{
		{os.O_WRONLY | os.O_CREATE | os.O_TRUNC, 0o600}, {os.O_RDWR | os.O_CREATE, 0o644}, {os.O_RDWR | os.O_CREATE | unix.O_DIRECT, 0o666},
		{os.O_RDWR | os.O_CREATE | os.O_EXCL, 0o777}, {os.O_RDWR | os.O_CREATE | os.O_APPEND, 0o640}, {os.O_RDONLY | os.O_CREATE, 0o400},
		{os.O_RDWR | os.O_CREATE | unix.O_NOATIME | unix.O_CLOEXEC, 0o644}, {os.O_RDWR | os.O_CREATE | os.O_SYNC, 0o644},
	} {
		path := fmt.Sprintf("%s/%d", dir, i)
		f, err := os.OpenFile(path, x.flags, x.mode)
		if err != nil {
			t.Errorf("%#x: %v", x.flags, err)
			continue
		}
		info, err := f.Stat()
		if err != nil || info.Mode() != x.mode&^os.FileMode(old) {
			t.Errorf("%#x: mode %v, %v", x.flags, info.Mode(), err)
		}
		f.Close()
	}
	path := write(t, dir+"/f", []byte("content"))
	if _, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644); !errors.Is(err, syscall.EEXIST) {
		t.Error(err)
	}
	if _, err := os.OpenFile(path, unix.O_DIRECTORY, 0); !errors.Is(err, syscall.ENOTDIR) {
		t.Error(err)
	}
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	d.Close()
	a, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	a.WriteString("+more")
	a.Close()
	if got, _ := os.ReadFile(path); string(got) != "content+more" {
		t.Errorf("%q", got)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_TRUNC, 0)
	must(t, err)
	f.Close()
	wantSize(t, path, 0)
}

func terabyte(t *testing.T, w *world, l library) {
	path := w.dir(t) + "/f"
	f := l.open(path, "rdwr,creat")
	b, r, wr := l.buffer(65536, 0), l.ring(ringOptions{entries: 4}), l.ring(ringOptions{entries: 4, write: true})
	b.fill(0, 65536, 5)
	must(t, os.Truncate(path, 1<<40))
	expect(t, 65536, wr, b, 0, f, 1<<39, 65536)
	expect(t, 65536, wr, b, 0, f, 0, 65536)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
			if err == nil {
				err = f.Truncate(1 << 40)
				f.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	for range 20 { // while they do
		b.fill(0, 65536, 1)
		expect(t, 65536, r, b, 0, f, 1<<39, 65536)
		holds(t, b, 0, 65536, 5)
	}
	all.Wait()
	wantSize(t, path, 1<<40)
	expect(t, 65536, r, b, 0, f, 0, 65536)
	holds(t, b, 0, 65536, 5)
	expect(t, 65536, wr, b, 0, f, 1<<40-65536, 65536)
	wantSize(t, path, 1<<40)
	var st syscall.Stat_t
	must(t, syscall.Stat(path, &st))
	if st.Blocks > 4096 {
		t.Errorf("%d blocks for three pages", st.Blocks)
	}
}

func fallocateR22(t *testing.T, w *world) {
	f, err := os.Create(w.dir(t) + "/f")
	must(t, err)
	defer f.Close()
	must(t, unix.Fallocate(int(f.Fd()), 0, 0, 1<<20))
	wantSize(t, f.Name(), 1<<20)
	var st syscall.Stat_t
	must(t, syscall.Stat(f.Name(), &st))
	if st.Blocks < 1<<20/512 {
		t.Errorf("%d blocks for 1 MiB", st.Blocks)
	}
}

func renames(t *testing.T, w *world, l library) {
	dir := w.dir(t)
	must(t, os.Mkdir(dir+"/sub", 0o755))
	write(t, dir+"/new", pattern(4096, 1))
	write(t, dir+"/sub/old", pattern(4096, 2))
	source, target := l.open(dir+"/new", "rdwr"), l.open(dir+"/sub/old", "rdonly")
	held, err := os.Open(dir + "/sub/old")
	must(t, err)
	defer held.Close()
	must(t, os.Rename(dir+"/new", dir+"/sub/old"))
	wantGone(t, dir+"/new")
	fileHolds(t, dir+"/sub/old", 0, 4096, 1)
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	expect(t, 4096, r, b, 0, source, 0, 4096)
	holds(t, b, 0, 4096, 1)
	expect(t, 4096, r, b, 0, target, 0, 4096) // replaced, but registered
	holds(t, b, 0, 4096, 2)
	got := make([]byte, 4096)
	if _, err := held.ReadAt(got, 0); err != nil || !bytes.Equal(got, pattern(4096, 2)) {
		t.Error("the replaced file reads differently", err)
	}
	b.fill(0, 4096, 3)
	expect(t, 4096, l.ring(ringOptions{entries: 4, write: true}), b, 0, source, 0, 4096)
	fileHolds(t, dir+"/sub/old", 0, 4096, 3)
	// A rename is atomic: a reader finds one file or the other.
	stop := make(chan struct{})
	var looker sync.WaitGroup
	looker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if got, err := os.ReadFile(dir + "/sub/old"); err != nil || len(got) != 4096 {
				t.Errorf("in the middle of a rename: %d bytes, %v", len(got), err)
				return
			}
		}
	})
	for i := range 50 {
		write(t, dir+"/tmp", pattern(4096, uint64(i)))
		must(t, os.Rename(dir+"/tmp", dir+"/sub/old"))
	}
	close(stop)
	looker.Wait()
}

func unlinkedOpen(t *testing.T, w *world, l library) {
	path := write(t, w.dir(t)+"/f", pattern(65536, 4))
	f := l.open(path, "rdwr")
	held, err := os.Open(path)
	must(t, err)
	defer held.Close()
	must(t, os.Remove(path))
	wantGone(t, path)
	b, r := l.buffer(65536, 0), l.ring(ringOptions{entries: 4})
	expect(t, 65536, r, b, 0, f, 0, 65536)
	holds(t, b, 0, 65536, 4)
	got := make([]byte, 65536)
	if _, err := held.ReadAt(got, 0); err != nil || !bytes.Equal(got, pattern(65536, 4)) {
		t.Error(err)
	}
	b.fill(0, 100, 9)
	expect(t, 100, l.ring(ringOptions{entries: 4, write: true}), b, 0, f, 65536, 100)
	if info, err := held.Stat(); err != nil || info.Size() != 65636 {
		t.Errorf("%d, %v", info.Size(), err)
	}
	write(t, path, []byte("another")) // a new file of that name
	expect(t, 65536, r, b, 0, f, 0, 65536)
	holds(t, b, 0, 65536, 4)
}

func mkdirs(t *testing.T, w *world) {
	dir := w.dir(t)
	must(t, os.Mkdir(dir+"/d", 0o755))
	wantErrno(t, "again", os.Mkdir(dir+"/d", 0o755), syscall.EEXIST)
	write(t, dir+"/f", nil)
	wantErrno(t, "over a file", os.Mkdir(dir+"/f", 0o755), syscall.EEXIST)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for i := range 20 {
				if err := os.MkdirAll(fmt.Sprintf("%s/a/b%d/c", dir, i), 0o755); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	must(t, os.Mkdir(dir+"/m", 0o744))
	if info, err := os.Stat(dir + "/m"); err != nil || info.Mode() != os.ModeDir|0o744 {
		t.Error(info.Mode(), err)
	}
	wantErrno(t, "rmdir of a full one", unix.Rmdir(dir+"/a"), syscall.ENOTEMPTY)
	must(t, unix.Rmdir(dir+"/d"))
}

func statR26(t *testing.T, w *world, l library) {
	dir := w.dir(t)
	path := dir + "/f"
	for _, mode := range []uint32{unix.F_OK, unix.R_OK} {
		wantErrno(t, "access", unix.Access(path, mode), syscall.ENOENT) // the kernel caches that
	}
	f := l.open(path, "rdwr,creat")
	for _, mode := range []uint32{unix.F_OK, unix.R_OK, unix.W_OK} {
		if err := unix.Access(path, mode); err != nil {
			t.Error(err)
		}
	}
	before, err := os.Stat(path)
	must(t, err)
	time.Sleep(20 * time.Millisecond) // so that the file system's clock advances
	b, wr := l.buffer(4096, 0), l.ring(ringOptions{entries: 4, write: true})
	for i := range int64(20) { // every write is visible at once
		expect(t, 100, wr, b, 0, f, i*100, 100)
		wantSize(t, path, i*100+100)
	}
	after, err := os.Stat(path)
	must(t, err)
	if !after.ModTime().After(before.ModTime()) {
		t.Errorf("mtime %v, before %v", after.ModTime(), before.ModTime())
	}
	must(t, os.Remove(path))
	wantErrno(t, "access", unix.Access(path, unix.F_OK), syscall.ENOENT)
}

func largeDirectory(t *testing.T, w *world) {
	dir := w.dir(t)
	const n = 20000
	for i := range n { // in the data directory, which is faster
		f, err := os.OpenFile(fmt.Sprintf("%s/key@%05d", w.behind(dir), i), os.O_CREATE|os.O_WRONLY, 0o644)
		must(t, err)
		f.Close()
	}
	must(t, os.Mkdir(dir+"/sub", 0o755))
	stop := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprintf("%s/tmp%d", dir, i%50)
			if err := os.WriteFile(name, nil, 0o644); err != nil {
				t.Error(err)
			}
			if err := os.Remove(name); err != nil {
				t.Error(err)
			}
		}
	})
	began := time.Now()
	for range 3 {
		d, err := os.Open(dir)
		must(t, err)
		seen := make(map[string]bool, n)
		for {
			entries, err := d.ReadDir(512)
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), "tmp") {
					continue
				}
				if seen[e.Name()] {
					t.Fatalf("%s twice", e.Name())
				}
				seen[e.Name()] = true
				if e.IsDir() != (e.Name() == "sub") || !e.IsDir() && !e.Type().IsRegular() {
					t.Errorf("%s has type %v", e.Name(), e.Type())
				}
			}
			if len(entries) == 0 || err != nil {
				break
			}
		}
		d.Close()
		if len(seen) != n+1 {
			t.Errorf("%d of %d entries", len(seen), n+1)
		}
	}
	t.Logf("%d entries per second", int(3*n/time.Since(began).Seconds()))
	close(stop)
	churn.Wait()
}

func times(t *testing.T, w *world) {
	dir := w.dir(t)
	path := write(t, dir+"/f", []byte("x"))
	at, mt := time.Unix(1700000000, 0), time.Unix(1600000000, 0)
	must(t, os.Chtimes(path, at, mt))
	must(t, os.Rename(path, dir+"/g"))
	for _, f := range []string{dir + "/g", w.behind(dir + "/g")} {
		info, err := os.Stat(f)
		must(t, err)
		if !info.ModTime().Equal(mt) || info.Sys().(*syscall.Stat_t).Atim.Sec != at.Unix() {
			t.Errorf("%s: %v, %v", f, info.ModTime(), info.Sys().(*syscall.Stat_t).Atim)
		}
	}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, dir+"/g", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}, 0))
	if info, _ := os.Stat(dir + "/g"); time.Since(info.ModTime()) > time.Minute || info.Sys().(*syscall.Stat_t).Atim.Sec != at.Unix() {
		t.Error(info.ModTime())
	}
}

func mmapR29(t *testing.T, w *world, l library) {
	dir := w.dir(t)
	path := dir + "/f"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(1<<20))
	m, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if w.passthrough() {
		must(t, err)
		copy(m, pattern(1<<20, 5))
		must(t, unix.Munmap(m))
	} else {
		wantErrno(t, "a shared mapping without passthrough", err, unix.ENODEV)
		_, err = f.WriteAt(pattern(1<<20, 5), 0)
		must(t, err)
	}
	must(t, f.Close())
	must(t, os.Rename(path, dir+"/g"))
	fileHolds(t, dir+"/g", 0, 1<<20, 5)
	g := l.open(dir+"/g", "rdwr")
	b, r := l.buffer(1<<20, 0), l.ring(ringOptions{entries: 4})
	expect(t, 1<<20, r, b, 0, g, 0, 1<<20)
	holds(t, b, 0, 1<<20, 5)
	b.fill(0, 1<<20, 6)
	expect(t, 1<<20, l.ring(ringOptions{entries: 4, write: true}), b, 0, g, 0, 1<<20)
	h, err := os.Open(dir + "/g")
	must(t, err)
	defer h.Close()
	p, err := unix.Mmap(int(h.Fd()), 0, 1<<20, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_POPULATE)
	must(t, err)
	if !bytes.Equal(p, pattern(1<<20, 6)) {
		t.Error("a mapping does not show the bytes that the ring wrote")
	}
	must(t, unix.Munmap(p))
}

func directR30(t *testing.T, w *world) {
	f, err := os.OpenFile(w.dir(t)+"/f", os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o644)
	must(t, err)
	defer f.Close()
	page, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
	must(t, err)
	defer unix.Munmap(page)
	copy(page, pattern(1<<20, 5))
	for _, x := range [][2]int64{{0, 1 << 20}, {1 << 20, 4096}, {8192, 65536}} {
		if n, err := unix.Pwrite(int(f.Fd()), page[:x[1]], x[0]); n != int(x[1]) || err != nil {
			t.Error(n, err)
		}
		clear(page)
		if n, err := unix.Pread(int(f.Fd()), page[:x[1]], x[0]); n != int(x[1]) || err != nil || !bytes.Equal(page[:n], pattern(int64(n), 5)) {
			t.Error(n, err)
		}
		copy(page, pattern(1<<20, 5))
	}
}

func aioR30(t *testing.T) {
	w := shared(t)
	path := aioBinary.get(t, func(dir string) (string, []*exec.Cmd) {
		out := filepath.Join(dir, "aio")
		return out, []*exec.Cmd{exec.Command("cc", "-O1", "-Wall", "-Werror", "-o", out, "testdata/aio.c")}
	})
	if out, err := shell(t, path+" "+w.dir(t)+"/f"); err != nil || out != "ok" {
		t.Errorf("%q, %v", out, err)
	}
}

func statfsR31(t *testing.T, w *world) {
	var front, back unix.Statfs_t
	must(t, unix.Statfs(w.Mount, &front))
	must(t, unix.Statfs(w.Data, &back))
	if front.Type != 0x65735546 || front.Bsize != 2<<20 || front.Frsize != 2<<20 || front.Namelen != 255 || front.Files != 0 {
		t.Errorf("%+v", front)
	}
	near := func(what string, a, b uint64) {
		if diff := max(a, b) - min(a, b); diff > 1<<30 { // other processes use the disk, too
			t.Errorf("%s: %d and %d bytes", what, a, b)
		}
	}
	unit := uint64(back.Frsize)
	near("capacity", front.Blocks<<21, back.Blocks*unit)
	near("free", front.Bfree<<21, back.Bfree*unit)
	near("available", front.Bavail<<21, back.Bavail*unit)
}

func fsyncR32(t *testing.T, w *world) {
	f, err := os.Create(w.dir(t) + "/f")
	must(t, err)
	defer f.Close()
	_, err = f.Write(pattern(1<<20, 5))
	must(t, err)
	took := within(t, patience, "fsync", func() { must(t, f.Sync()) })
	t.Logf("fsync of 1 MiB: %v", took)
	fileHolds(t, w.behind(f.Name()), 0, 1<<20, 5) // as another host would read it
	must(t, unix.Fdatasync(int(f.Fd())))
	d, err := os.Open(filepath.Dir(f.Name()))
	must(t, err)
	defer d.Close()
	must(t, d.Sync())
}

func inodesR33(t *testing.T, w *world) {
	dir := w.dir(t)
	seen := map[uint64]string{}
	for i := range 200 {
		path := write(t, fmt.Sprintf("%s/%d", dir, i), nil)
		f, err := os.Open(path)
		must(t, err)
		ino := inoOf(t, f)
		f.Close()
		var st syscall.Stat_t
		must(t, syscall.Stat(path, &st))
		if st.Ino != ino || ino <= 1 || ino>>60 != 0 || seen[ino] != "" {
			t.Errorf("%s: inode %#x, statx %#x, known as %q", path, st.Ino, ino, seen[ino])
		}
		seen[ino] = path
		must(t, os.Rename(path, path+"r"))
		must(t, syscall.Stat(path+"r", &st))
		if st.Ino != ino {
			t.Errorf("%s: the inode number changes", path)
		}
		must(t, os.Link(path+"r", path+"l"))
		must(t, syscall.Stat(path+"l", &st))
		if st.Ino != ino {
			t.Errorf("%s: the inode number of a link differs", path)
		}
	}
	var st syscall.Stat_t
	must(t, syscall.Stat(w.Mount, &st))
	if st.Ino != 1 {
		t.Errorf("the root has inode number %d", st.Ino)
	}
}

func longNames(t *testing.T, w *world, l library) {
	dir := w.dir(t)
	for _, name := range []string{
		"meta-llama@Llama-3.1%2F8B'x y@1@0@" + strings.Repeat("a1b2c3", 16) + "@half.data", strings.Repeat("n", 255), "-", "ünïcode",
	} {
		path := dir + "/" + name
		if strings.Contains(name, " ") {
			path = dir + "/" + strings.ReplaceAll(name, " ", "-") // the tool's commands are words
		}
		write(t, path, pattern(100, 2))
		b := l.buffer(4096, 0)
		expect(t, 100, l.ring(ringOptions{entries: 4}), b, 0, l.open(path, "rdonly"), 0, 4096)
		if !slices.Contains(namesIn(t, dir), filepath.Base(path)) {
			t.Error(path)
		}
	}
	wantErrno(t, "256 bytes", os.WriteFile(dir+"/"+strings.Repeat("n", 256), nil, 0o644), syscall.ENAMETOOLONG)
	deep := dir + strings.Repeat("/"+strings.Repeat("d", 200), 10)
	must(t, os.MkdirAll(deep, 0o755))
	write(t, deep+"/f", pattern(100, 2))
	fileHolds(t, deep+"/f", 0, 100, 2)
}

func severalUsers(t *testing.T) {
	w := shared(t)
	dir := w.dir(t)
	a, b := w.toolAs(t, alice), w.toolAs(t, bob)
	a.ok("open f %s/shared rdwr,creat 0666", dir)
	a.ok("pwrite f 0 100 1")
	must(t, os.Chmod(dir+"/shared", 0o666))
	b.ok("open f %s/shared rdwr", dir)
	b.ok("pwrite f 100 100 101")
	b.ok("reg f")
	b.ok("iovcreate v %s 4096 0 -1", w.Mount)
	b.ok("fill v 0 100 201")
	b.ok("iorcreate w %s 4 w 0 -1", w.Mount)
	b.ok("prep w v w 0 f 200 100 1")
	b.ok("submit w")
	if got := b.ok("wait w 1 1 30000").cqes(t); got[0].result != 100 {
		t.Errorf("%+v", got)
	}
	fileHolds(t, dir+"/shared", 0, 300, 1)
	for path, uid := range map[string]uint32{dir + "/shared": alice, w.behind(dir + "/shared"): alice} {
		var st syscall.Stat_t
		must(t, syscall.Stat(path, &st))
		if st.Uid != uid || st.Gid != uid {
			t.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
		}
	}
	a.ok("open g %s/private rdwr,creat 0600", dir)
	b.fails(int(syscall.EACCES), "open g %s/private rdonly", dir)
	root, err := os.Open(dir + "/private") // no root squash
	must(t, err)
	root.Close()
	must(t, os.Mkdir(dir+"/closed", 0o755))
	b.fails(int(syscall.EACCES), "open h %s/closed/f rdwr,creat", dir)
}
