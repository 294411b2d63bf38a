package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// hungDisk is R13: if a disk stops answering, requests time out and no client hangs.
func hungDisk(t *testing.T) {
	const deadline = 700 * time.Millisecond
	w, disk := slowDisk(t, "--deadline", deadline.String())
	healthyPath := write(t, w.dir(t)+"/f", pattern(100, 1))
	throughBoth(t, w, func(t *testing.T, l library) {
		for _, writes := range []bool{false, true} {
			slow, healthy := l.open(w.Mount+"/disk/slow", "rdwr"), l.open(healthyPath, "rdonly")
			b, r, reads := l.buffer(1<<20, 0), l.ring(ringOptions{entries: 8, write: writes}), l.ring(ringOptions{entries: 8})
			b.fill(0, 1<<20, 9)
			release := disk.hang()
			began := time.Now()
			for i := range int64(4) {
				if _, errno := r.prep(b, i*131072, slow, i*131072, 131072, 5); errno != 0 {
					t.Fatal(errno)
				}
			}
			r.submit()
			got := r.wait(4, 4, 5*time.Second)
			took := time.Since(began)
			for _, q := range got {
				if q.result != -int64(syscall.ETIMEDOUT) {
					t.Errorf("write %v: %+v", writes, q)
				}
			}
			if len(got) != 4 || took < deadline || took > 5*time.Second {
				t.Errorf("write %v: %d answers after %v", writes, len(got), took)
			}
			expect(t, 100, reads, b, 1<<20-100, healthy, 0, 100) // other requests are served
			b.fill(0, 1<<20, 10)                                 // the client may use the buffer again
			release()
			eventually(t, "the disk serves again", func() bool { return one(t, reads, b, 1<<19, slow, 0, 100) == 100 })
			holds(t, b, 0, 1<<19, 10) // late data did not reach the buffer
			if got := r.wait(4, 1, 50*time.Millisecond); len(got) != 0 {
				t.Errorf("completed twice: %+v", got)
			}
		}
	})
}

// TestDiskError checks that EIO from the disk fails its own request and no other.
func TestDiskError(t *testing.T) {
	w, _ := slowDisk(t)
	throughBoth(t, w, func(t *testing.T, l library) {
		bad, good := l.open(w.Mount+"/disk/eio", "rdwr"), l.open(write(t, w.dir(t)+"/f", make([]byte, 100)), "rdonly")
		b, r, wr := l.buffer(1<<20, 0), l.ring(ringOptions{entries: 8}), l.ring(ringOptions{entries: 8, write: true})
		expect(t, -int64(syscall.EIO), r, b, 0, bad, 0, 4096)
		expect(t, -int64(syscall.EIO), r, b, 0, bad, 0, 1<<20)
		expect(t, -int64(syscall.EIO), r, b, 1, bad, 1, 100)
		expect(t, -int64(syscall.EIO), wr, b, 0, bad, 0, 4096)
		expect(t, 100, r, b, 0, good, 0, 4096)
	})
	_, err := os.ReadFile(w.Mount + "/disk/eio")
	wantErrno(t, "through the mount", err, syscall.EIO)
}

// TestDiskFull checks for -ENOSPC in the completion, and that stored data survives.
func TestDiskFull(t *testing.T) {
	daemontest.NeedRoot(t)
	data := daemontest.NewDir(t) + "/data"
	must(t, os.Mkdir(data, 0o777))
	must(t, unix.Mount("none", data, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() { must(t, unix.Unmount(data, unix.MNT_DETACH)) })
	w := start(t, daemontest.Options{Data: data})
	throughBoth(t, w, func(t *testing.T, l library) {
		path := w.dir(t) + "/f"
		f := l.open(path, "rdwr,creat")
		b, wr := l.buffer(1<<20, 0), l.ring(ringOptions{entries: 32, write: true})
		b.fill(0, 1<<20, 3)
		stored := int64(0)
		for {
			got := one(t, wr, b, 0, f, stored<<20, 1<<20)
			if got == -int64(syscall.ENOSPC) {
				break
			}
			if got != 1<<20 || stored > 8 {
				t.Fatalf("request %d: %d", stored, got)
			}
			stored++
		}
		if stored == 0 {
			t.Fatal("not even one request fits on the disk")
		}
		for i := range 20 { // the same in a batch
			wr.prep(b, 0, f, (stored+int64(i))<<20, 1<<20, 1)
		}
		wr.submit()
		for _, q := range wr.wait(20, 20, patience) {
			if q.result != -int64(syscall.ENOSPC) {
				t.Errorf("%+v", q)
			}
		}
		for i := range stored {
			fileHolds(t, path, i<<20, 1<<20, 3)
		}
		err := os.WriteFile(path+"2", make([]byte, 2<<20), 0o644)
		wantErrno(t, "write(2)", err, syscall.ENOSPC)
		must(t, os.Remove(path+"2"))
		f.close()
		must(t, os.Remove(path))
		g := l.open(path, "rdwr,creat") // there is space again
		eventually(t, "the space comes back", func() bool { return one(t, wr, b, 0, g, 0, 1<<20) == 1<<20 })
		g.close()
		must(t, os.Remove(path))
	})
}

// TestKilledInTransfer kills clients in the middle of transfers.
func TestKilledInTransfer(t *testing.T) {
	daemontest.NeedRoot(t)
	w := start(t, daemontest.Options{})
	const uid = 22200
	dir := w.dir(t)
	for i := range 12 {
		if i%2 == 0 {
			cmd := hold(t, w, uid, "write", dir)
			time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) // somewhere in the middle
			must(t, cmd.Process.Kill())
			cmd.Wait()
			continue
		}
		c := w.toolAs(t, uid)
		c.ok("open f %s/f%d rdwr,creat", dir, i)
		c.ok("reg f")
		c.ok("iovcreate v %s %d 0 -1", w.Mount, 64<<20)
		c.ok("iorcreate w %s 64 w 0 -1", w.Mount)
		c.ok("prep_many w v w 0 f 0 %d 64 0", 1<<20)
		c.ok("submit w")
		c.die()
	}
	goneFor(t, w, uid)
	l := newGoLibrary(t, w)
	f := l.open(write(t, dir+"/after", pattern(100, 1)), "rdonly")
	b := l.buffer(4096, 0)
	expect(t, 100, l.ring(ringOptions{entries: 4}), b, 0, f, 0, 100)
}

// TestDrain checks that the daemon answers requests in flight after SIGTERM.
func TestDrain(t *testing.T) {
	w, disk := slowDisk(t, "--drain", "2s")
	semaphores := semaphoresOf(t, w)
	c := w.tool(t)
	c.ok("open f %s/disk/slow rdonly", w.Mount)
	c.ok("reg f")
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	release := disk.hang()
	c.ok("prep r v r 0 f 0 100 7")
	c.ok("submit r")
	<-disk.hanging
	must(t, w.Signal(syscall.SIGTERM))
	eventually(t, "the daemon stops", func() bool { return strings.Contains(w.Log(), "stopping") })
	release()
	if got := c.ok("wait r 1 1 30000").cqes(t); len(got) != 1 || got[0].result != 100 || got[0].userdata != 7 {
		t.Errorf("%+v", got)
	}
	c.die()
	within(t, patience, "the exit of the daemon", func() { <-w.Ended() })
	if w.Err() != nil {
		t.Errorf("%v\n%s", w.Err(), w.Log())
	}
	for _, s := range semaphores {
		wantGone(t, s)
	}
}

// TestDrainOfHungDisk checks that a request that never completes does not hold up the
// daemon past its deadline. The process itself stays until the kernel returns from the
// call it is stuck in; with a FUSE file system as the hung disk, SIGKILL does not help.
func TestDrainOfHungDisk(t *testing.T) {
	w, disk := slowDisk(t, "--drain", "500ms", "--deadline", "500ms")
	c := w.tool(t)
	c.ok("open f %s/disk/slow rdonly", w.Mount)
	c.ok("reg f")
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	release := disk.hang()
	c.ok("prep r v r 0 f 0 100 7")
	c.ok("submit r")
	<-disk.hanging
	must(t, w.Signal(syscall.SIGTERM))
	if got := c.ok("wait r 1 1 30000").cqes(t); len(got) != 1 || got[0].result != -int64(syscall.ETIMEDOUT) {
		t.Errorf("%+v", got)
	}
	eventually(t, "the daemon gives up", func() bool { return strings.Contains(w.Log(), "were abandoned") })
	if left := daemontest.MountsBelow(w.Mount); len(left) != 0 {
		t.Error(left)
	}
	release()
	within(t, patience, "the exit of the daemon", func() { <-w.Ended() })
	if w.Err() == nil {
		t.Error("the exit status is 0, as after an orderly stop")
	}
}

// TestBusyMount checks that clients that stay are cut off after --drain.
func TestBusyMount(t *testing.T) {
	w := start(t, daemontest.Options{Flags: []string{"--drain", "600ms"}})
	f, err := os.Create(w.Mount + "/f")
	must(t, err)
	defer f.Close()
	took := w.signal(t, syscall.SIGTERM)
	if took < 500*time.Millisecond || took > 8*time.Second {
		t.Errorf("ended after %v", took)
	}
	if left := daemontest.MountsBelow(w.Mount); len(left) != 0 {
		t.Error(left)
	}
}

// TestSecondSignal ends a daemon at once; the next daemon takes the mount over.
func TestSecondSignal(t *testing.T) {
	w := start(t, daemontest.Options{Flags: []string{"--drain", "60s"}})
	f, err := os.Create(w.Mount + "/f")
	must(t, err)
	defer f.Close()
	must(t, w.Signal(syscall.SIGTERM))
	eventually(t, "the daemon stops", func() bool { return strings.Contains(w.Log(), "stopping") })
	again := time.Now()
	eventually(t, "the daemon exits at once", func() bool {
		_ = w.Signal(syscall.SIGTERM) // one right after the first counts as the same
		select {
		case <-w.Ended():
			return true
		default:
			return false
		}
	})
	if took := time.Since(again); took > 5*time.Second {
		t.Errorf("ended after %v", took)
	}
	if w.Err() == nil {
		t.Error("the exit status is 0, as after an orderly stop")
	}
	next := start(t, daemontest.Options{Data: w.Data, Mount: w.Mount, Flags: []string{"--drain", "300ms"}})
	wantThere(t, next.Mount+"/f")
}

// TestTwoDaemons checks that a data directory, or a mount point, has only one daemon.
func TestTwoDaemons(t *testing.T) {
	w := start(t, daemontest.Options{})
	other := daemontest.NewDir(t)
	for want, args := range map[string][]string{
		"served already": {"--data", w.Data, "--mount", other + "/mnt"},
		"mounted there":  {"--data", other + "/data", "--mount", w.Mount},
		"must be apart":  {"--data", other + "/x", "--mount", other},
	} {
		var out []byte
		var err error
		within(t, patience, "a start that must be refused", func() {
			out, err = exec.Command(kv3fs(t), append([]string{"serve"}, args...)...).CombinedOutput()
		})
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v, want %q\n%s", args, err, want, out)
		}
	}
	wantThere(t, w.virtual("iovs"))
}

// TestUserMount runs a daemon without root, mounted through fusermount3.
func TestUserMount(t *testing.T) {
	daemontest.NeedRoot(t) // only to become another user
	if _, err := exec.LookPath("fusermount3"); err != nil {
		daemontest.NotTested(t, "a mount without root: "+err.Error())
	}
	who, err := user.Lookup("nobody") // the helper wants a user with a name
	if err != nil {
		daemontest.NotTested(t, "a mount without root: "+err.Error())
	}
	id, err := strconv.Atoi(who.Uid)
	must(t, err)
	w := start(t, daemontest.Options{UID: uint32(id)})
	c := w.toolAs(t, uint32(id))
	c.ok("open f %s/f rdwr,creat", w.Mount)
	c.ok("reg f")
	c.ok("iovcreate v %s 65536 0 -1", w.Mount)
	c.ok("fill v 0 65536 3")
	c.ok("iorcreate w %s 4 w 0 -1", w.Mount)
	c.ok("iorcreate2 r %s 4 r 0 -1 -1", w.Mount)
	c.ok("prep w v w 0 f 0 65536 1")
	c.ok("submit w")
	if got := c.ok("wait w 1 1 30000").cqes(t); got[0].result != 65536 {
		t.Errorf("%+v", got)
	}
	c.ok("zero v 0 65536")
	c.ok("prep r v r 0 f 0 65536 1")
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 65536 {
		t.Errorf("%+v", got)
	}
	c.ok("check v 0 65536 3")
	if a := c.ok("extract %s/f", w.Mount); a.kv["mount"] != w.Mount {
		t.Error(a.line)
	}
	w.toolAs(t, bob).fails(int(syscall.EACCES), "open f %s/f rdonly", w.Mount) // without allow_other
	fileHolds(t, w.Data+"/f", 0, 65536, 3)
	c.ok("iordestroy w")
	c.ok("iordestroy r")
	c.ok("iovdestroy v")
	c.die()
}

// TestHostileClients checks that clients that scribble over their memory, shrink it
// or register nonsense harm only themselves. The daemon has the race detector in it.
func TestHostileClients(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a second binary")
	}
	shared(t) // skips before the build where nothing can be mounted
	binary := filepath.Join(daemontest.Dir(t), "kv3fs-race")
	must(t, daemontest.Build(binary, "CGO_ENABLED=1", "-race"))
	w := start(t, daemontest.Options{Binary: binary, Flags: []string{"--log-level", "ERROR"}, Env: []string{"GORACE=halt_on_error=1 exitcode=66"}})
	path := write(t, w.Mount+"/f", pattern(1<<20, 1))
	good := newGoLibrary(t, w)
	f := good.open(path, "rdonly")
	b, r := good.buffer(1<<20, 0), good.ring(ringOptions{entries: 16})

	stop := make(chan struct{})
	var all sync.WaitGroup
	for seed := range uint64(3) {
		all.Go(func() { scribble(t, w, seed, stop) })
	}
	all.Go(func() { shrink(t, w, stop) })
	all.Go(func() { rubbishNames(t, w, stop) })
	end := time.Now().Add(6 * time.Second)
	for time.Now().Before(end) && !t.Failed() {
		expect(t, 65536, r, b, 0, f, 65536, 65536) // another client is not affected
		holds(t, b, 0, 65536, 65537)
	}
	close(stop)
	all.Wait()
	if !w.Alive() {
		t.Fatalf("the daemon exited: %v\n%s", w.Err(), w.Log())
	}
	fileHolds(t, path, 0, 1<<20, 1)
}

func stopped(stop chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// scribble registers rings and writes at random into them while they are served.
func scribble(t *testing.T, w *world, seed uint64, stop chan struct{}) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	for !stopped(stop) {
		r := newRawRing(t, w, 8, ".r0.t0", "submit-ios")
		id, _ := rawIov(t, w, 65536, "")
		for range 300 {
			for range 1 + rnd.IntN(4) {
				a := wire.Args{BufID: id, BufOff: rnd.Uint64() >> rnd.IntN(64), FileIno: rnd.Uint64() >> rnd.IntN(64), FileOff: rnd.Uint64() >> rnd.IntN(64), Len: rnd.Uint64() >> rnd.IntN(64)}
				r.push(int32(rnd.IntN(9)), a)
			}
			switch rnd.IntN(6) {
			case 0:
				word := make([]byte, 4)
				rnd32 := rnd.Uint32() >> rnd.IntN(32)
				for i := range word {
					word[i] = byte(rnd32 >> (8 * i))
				}
				r.mem.CopyIn(int64(rnd.IntN(int(r.mem.Len()-4))), word)
			case 1:
				r.mem.StoreInt32(int64(4*rnd.IntN(4)), int32(rnd.IntN(12)-2))
			case 2:
				r.head = int32(rnd.IntN(9))
			}
			r.submit.Post()
		}
		os.Remove(w.iovs(r.name))
	}
}

// shrink shrinks memory objects while the daemon uses them.
func shrink(t *testing.T, w *world, stop chan struct{}) {
	f, err := os.Open(w.Mount + "/f")
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	ino := inoOf(t, f)
	for i := 0; !stopped(stop); i++ {
		r := newRawRing(t, w, 8, ".r0.t0", "submit-ios")
		id, mem := rawIov(t, w, 1<<20, "")
		for k := range int32(8) {
			r.push(k, wire.Args{BufID: id, FileIno: ino, Len: 1 << 20})
		}
		r.submit.Post()
		if i%2 == 0 {
			mem.Shrink(0)
		} else {
			r.mem.Shrink(0)
		}
		r.submit.Post()
		os.Remove(w.iovs(r.name))
		os.Remove(w.iovs(id.String()))
	}
}

func rubbishNames(t *testing.T, w *world, stop chan struct{}) {
	rnd := rand.New(rand.NewPCG(7, 7))
	path, _ := object(t, 65536)
	for !stopped(stop) {
		name := wire.NewUUID().String()
		for range rnd.IntN(6) {
			name += fmt.Sprintf(".%c%d", "brwtpfx\x80"[rnd.IntN(8)], int64(rnd.Uint64()))
		}
		if err := os.Symlink(path, w.iovs(name)); err == nil {
			os.Remove(w.iovs(name))
		} else if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENAMETOOLONG) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
