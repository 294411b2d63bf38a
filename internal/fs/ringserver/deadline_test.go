package ringserver

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// hangingFile is a file on a file system that stops answering: its reads wait for
// release. With direct, the kernel pins the reader's pages at once and fills them
// late, as a device does; otherwise it copies to the reader's address late.
type hangingFile struct {
	fs.Inode
	direct  bool
	release chan struct{}
	delay   time.Duration // of every read after the release
}

const hangingBytes = 1 << 20

func (h *hangingFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Size = hangingBytes
	return 0
}

func (h *hangingFile) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if h.direct {
		return nil, fuse.FOPEN_DIRECT_IO, 0
	}
	return nil, 0, 0
}

func (h *hangingFile) Read(_ context.Context, _ fs.FileHandle, dest []byte, _ int64) (fuse.ReadResult, syscall.Errno) {
	<-h.release
	time.Sleep(h.delay)
	return fuse.ReadResultData(bytes.Repeat([]byte{'x'}, len(dest))), 0
}

// hanging mounts a file system with one hanging file and adds that to files.
func hanging(t *testing.T, files *dirFiles, direct bool) (ino uint64, release chan struct{}) {
	t.Helper()
	h := &hangingFile{direct: direct, release: make(chan struct{})}
	return mountHanging(t, files, h), h.release
}

func mountHanging(t *testing.T, files *dirFiles, h *hangingFile) (ino uint64) {
	t.Helper()
	root := &fs.Inode{}
	dir := t.TempDir()
	server, err := fs.Mount(dir, root, &fs.Options{
		// Without splicing, for which go-fuse keeps pipes for the life of the process.
		MountOptions: fuse.MountOptions{DirectMount: true, DisableSplice: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild("f", root.NewPersistentInode(ctx, h, fs.StableAttr{Ino: 1<<40 + uint64(len(files.files))}), false)
		},
	})
	if err != nil {
		t.Fatalf("NOT TESTED: a FUSE mount that acts as a dead disk needs root or fusermount3: %v", err)
	}
	files.after = append(files.after, server.Wait)
	t.Cleanup(func() {
		// The ring server closes the file only after this; then the FUSE server ends.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return files.add(t, filepath.Join(dir, "f"), os.O_RDONLY)
}

// A request past its deadline completes with ETIMEDOUT, and nothing writes to its
// buffer when the disk answers after all: neither through the page cache nor by
// direct I/O into pinned pages.
func TestDeadline(t *testing.T) {
	for name, direct := range map[string]bool{"buffered": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			s, files := serve(t, Options{Deadline: 200 * time.Millisecond, Workers: 1})
			ino, release := hanging(t, files, direct)
			healthy := fileWith(t, files, bytes.Repeat([]byte{'h'}, 4096))
			buf, id, _, err := object(t, s, 1<<20, "")
			if err != nil {
				t.Fatal(err)
			}
			r := newPeer(t, s, 8, ".r0.t0")
			start := time.Now()
			r.prep(3, wire.Args{BufID: id, BufOff: 8192, FileIno: ino, Len: 65536, Userdata: 33})
			r.submit()
			got := r.reap(1, 10*time.Second)
			if len(got) != 1 || got[0] != (wire.Cqe{Index: 3, Result: -int64(syscall.ETIMEDOUT), Userdata: 33}) {
				t.Fatalf("completions %+v", got)
			}
			if waited := time.Since(start); waited < 200*time.Millisecond || waited > 5*time.Second {
				t.Errorf("answered after %v, want about 200 ms", waited)
			}
			mine := bytes.Repeat([]byte{'c'}, 1<<20)
			buf.CopyIn(0, mine)

			// The only worker is stuck, so another one takes its place.
			if n := r.one(wire.Args{BufID: id, BufOff: 1<<20 - 10, FileIno: healthy, Len: 10}); n != 10 {
				t.Fatalf("behind the stuck request: %d", n)
			}
			close(release)
			s.poller(wire.Normal).awaitNoneStuck(t)
			now := make([]byte, 1<<20)
			buf.CopyOut(now, 0)
			copy(mine[1<<20-10:], "hhhhhhhhhh")
			if !bytes.Equal(now, mine) {
				t.Error("the late answer went into the client's buffer")
			}
			if got := r.reap(1, 50*time.Millisecond); len(got) != 0 {
				t.Errorf("completed twice: %+v", got)
			}
		})
	}
}

// A request that shares a page with a timed-out one still has its bytes in the
// client's memory.
func TestDeadlineSparesNeighbours(t *testing.T) {
	s, files := serve(t, Options{Deadline: 300 * time.Millisecond, Workers: 4})
	stuck, releaseStuck := hanging(t, files, false)
	slow, releaseSlow := hanging(t, files, false)
	defer close(releaseStuck)
	buf, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r := newPeer(t, s, 8, ".r0.t0")
	other := newPeer(t, s, 8, ".r0.t0")
	r.prep(0, wire.Args{BufID: id, BufOff: 0, FileIno: stuck, Len: 100})
	r.submit()
	time.Sleep(150 * time.Millisecond) // so that their deadlines differ
	other.prep(1, wire.Args{BufID: id, BufOff: 200, FileIno: slow, Len: 100})
	other.submit()
	if got := r.reap(1, 10*time.Second); len(got) != 1 || got[0].Result != -int64(syscall.ETIMEDOUT) {
		t.Fatalf("stuck: %+v", got)
	}
	close(releaseSlow)
	got := other.reap(1, 10*time.Second)
	if len(got) != 1 {
		t.Fatalf("slow: %+v", got)
	}
	b := make([]byte, 100)
	buf.CopyOut(b, 200)
	if got[0].Result == 100 && !bytes.Equal(b, bytes.Repeat([]byte{'x'}, 100)) {
		t.Error("a completed read's bytes are not in the client's buffer")
	}
	if got[0].Result != 100 && got[0].Result != -int64(syscall.ETIMEDOUT) {
		t.Errorf("slow: %+v", got)
	}
}

// A ring may be unlinked while its requests run: its memory is released only after
// them (case 65).
func TestUnlinkUnderLoad(t *testing.T) {
	s, files := serve(t, Options{Workers: 4})
	ino := fileWith(t, files, pattern(1<<20))
	for range 200 {
		_, id, iovName, err := object(t, s, 1<<20, "")
		if err != nil {
			t.Fatal(err)
		}
		r := newPeer(t, s, 16, ".r0.t0")
		for i := range int32(16) {
			r.prep(i, wire.Args{BufID: id, BufOff: uint64(i) << 16, FileIno: ino, Len: 1 << 16})
		}
		r.submit()
		if err := s.Unregister(me, iovName); err != nil {
			t.Error(err)
		}
		if err := s.Unregister(me, r.name); err != nil {
			t.Error(err)
		}
	}
	var rest []string
	for _, e := range s.List(me.UID) {
		rest = append(rest, e.Name)
	}
	if len(rest) != 0 {
		t.Errorf("still registered: %v", rest)
	}
}

// A stuck request does not delay the others of its batch.
func TestStuckRequestIsAlone(t *testing.T) {
	s, files := serve(t, Options{Deadline: 20 * time.Second, Workers: 4})
	stuck, release := hanging(t, files, false)
	ino := fileWith(t, files, pattern(1<<20))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r := newPeer(t, s, 64, ".r0.t0")
	for i := range int32(40) {
		a := wire.Args{BufID: id, BufOff: uint64(i) * 4096, FileIno: ino, Len: 4096, Userdata: uint64(i)}
		if i == 5 {
			a.FileIno = stuck
		}
		r.prep(i, a)
	}
	r.submit()
	got := r.reap(39, 10*time.Second)
	if len(got) != 39 {
		t.Fatalf("%d of 39 requests were answered beside a stuck one", len(got))
	}
	for _, c := range got {
		if c.Result != 4096 || c.Index == 5 {
			t.Errorf("completion %+v", c)
		}
	}
	close(release)
	if got := r.reap(1, 10*time.Second); len(got) != 1 || got[0].Index != 5 || got[0].Result != 4096 {
		t.Errorf("the stuck request: %+v", got)
	}
	if got := r.reap(1, 50*time.Millisecond); len(got) != 0 {
		t.Errorf("completed twice: %+v", got)
	}
}

// A ring that always has work on a slow device does not starve another.
func TestNoRingStarvesAnother(t *testing.T) {
	s, files := serve(t, Options{Deadline: 2 * time.Second, Workers: 8})
	h := &hangingFile{direct: true, release: make(chan struct{}), delay: time.Millisecond}
	close(h.release)
	slow := mountHanging(t, files, h)
	quick := fileWith(t, files, pattern(4096))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	greedy := newPeer(t, s, 256, ".r0.t0")
	go func() {
		defer close(stopped)
		var free []int32
		for i := range int32(256) {
			free = append(free, i)
		}
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, i := range free {
				greedy.prep(i, wire.Args{BufID: id, BufOff: uint64(i) * 4096, FileIno: slow, Len: 4096})
			}
			greedy.submit()
			free = free[:0]
			for _, c := range greedy.reap(1, time.Second) {
				free = append(free, c.Index)
			}
		}
	}()
	modest := newPeer(t, s, 4, ".r0.t0")
	for range 50 {
		if n := modest.one(wire.Args{BufID: id, FileIno: quick, Len: 4096}); n != 4096 {
			t.Fatalf("beside a greedy ring: %d", n)
		}
	}
	close(stop)
	<-stopped
}

// An iov is removed and registered again under the same name, smaller, while a request
// on it must be repeated: the request is refused, and the new iov is not written to.
func TestSpoiledReadOfRemadeIov(t *testing.T) {
	s, files := serve(t, Options{Deadline: 300 * time.Millisecond, Workers: 4})
	stuck, releaseStuck := hanging(t, files, false)
	slow, releaseSlow := hanging(t, files, false)
	defer close(releaseStuck)
	_, id, name, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r, other := newPeer(t, s, 8, ".r0.t0"), newPeer(t, s, 8, ".r0.t0")
	r.prep(0, wire.Args{BufID: id, BufOff: 524288, FileIno: stuck, Len: 100})
	r.submit()
	time.Sleep(150 * time.Millisecond) // so that their deadlines differ
	other.prep(1, wire.Args{BufID: id, BufOff: 524488, FileIno: slow, Len: 100})
	other.submit()
	if got := r.reap(1, 10*time.Second); len(got) != 1 || got[0].Result != -int64(syscall.ETIMEDOUT) {
		t.Fatalf("stuck: %+v", got)
	}
	if err := s.Unregister(me, name); err != nil {
		t.Fatal(err)
	}
	file := "kv3fs-test-" + wire.NewUUID().String()
	m, err := shm.Create(file, 4096, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	defer shm.Remove(file)
	if _, err := s.Register(me, name, filepath.Join(shm.Dir, file)); err != nil {
		t.Fatal(err)
	}
	close(releaseSlow)
	got := other.reap(1, 10*time.Second)
	if len(got) != 1 || got[0].Result != -int64(syscall.EINVAL) && got[0].Result != -int64(syscall.ETIMEDOUT) {
		t.Errorf("slow: %+v", got)
	}
	b := make([]byte, 4096)
	if m.CopyOut(b, 0); !bytes.Equal(b, make([]byte, 4096)) {
		t.Error("the new iov was written to")
	}
}

// A client that shrinks its ring while a batch is in flight, and unlinks it, harms
// no other client.
func TestRingShrinksUnderItsBatch(t *testing.T) {
	s, files := serve(t, Options{Deadline: 200 * time.Millisecond, Workers: 4})
	stuck, release := hanging(t, files, false)
	ino := fileWith(t, files, pattern(4096))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		r := newPeer(t, s, 1024, ".r0.t0")
		for i := range int32(20) {
			a := wire.Args{BufID: id, FileIno: ino, Len: 4096}
			if i == 10 {
				a.FileIno = stuck
			}
			r.prep(i, a)
		}
		r.submit()
		r.m.Shrink(0)
		if err := s.Unregister(me, r.name); err != nil {
			t.Error(err)
		}
	}
	close(release)
	good := newPeer(t, s, 4, ".r0.t0")
	for end := time.Now().Add(10 * time.Second); good.one(wire.Args{BufID: id, FileIno: ino, Len: 4096}) != 4096; {
		if time.Now().After(end) {
			t.Fatal("the server has stopped serving")
		}
	}
}

// begun is a read that a worker has begun, and has then gone on to another buffer.
type begun struct {
	s     *Server
	files *dirFiles
	peer  *peer
	ring  *ring
	iov   string
	batch []*request // the read alone
	args  wire.Args  // of another read of the same file into the same buffer
}

// beginRead begins a read of this many bytes from a file of 4096. The caller closes.
func beginRead(t *testing.T, bytes uint64, o Options) *begun {
	t.Helper()
	files := newDirFiles()
	s, err := New(files, nobodyReadonly, blockio.Mover{}, o)
	if err != nil {
		t.Fatal(err)
	}
	f := &begun{s: s, files: files, args: wire.Args{FileIno: fileWith(t, files, pattern(4096)), Len: 4096}}
	if _, f.args.BufID, f.iov, err = object(t, s, 1<<20, ""); err != nil {
		t.Fatal(err)
	}
	f.peer = newPeer(t, s, 4, ".r0.t0")
	f.peer.prep(0, wire.Args{BufID: f.args.BufID, FileIno: f.args.FileIno, Len: bytes})
	f.ring = s.table.get(f.peer.name).ring
	f.batch, _, _ = f.ring.take(nil)
	b := borrowed{unmaps: &s.unmaps}
	if err := s.validate(f.ring, f.batch[0], &b); err != nil {
		t.Fatal(err)
	}
	f.batch[0].state.Store(stateRunning)
	b.release()
	return f
}

// expire expires all requests, and returns how many there were.
func (f *begun) expire() int {
	f.ring.mu.Lock()
	defer f.ring.unlock()
	return f.ring.expire(math.MaxInt64).requests
}

func (f *begun) close() {
	f.s.Close()
	f.files.files[f.args.FileIno].Close()
}

// A request that is running keeps its memory mapped until it has ended, although its
// worker has gone on to another buffer and the iov is gone: its deadline still has to
// detach its pages.
func TestExpiredRequestKeepsItsMemory(t *testing.T) {
	f := beginRead(t, 4096, Options{})
	defer f.close()
	if err := f.s.Unregister(me, f.iov); err != nil {
		t.Fatal(err)
	}
	if expired := f.expire(); expired != 1 {
		t.Errorf("%d requests expired, want 1", expired)
	}
	f.ring.complete(f.batch)
	if got := f.peer.reap(1, time.Second); len(got) != 1 || got[0].Result != -int64(syscall.ETIMEDOUT) {
		t.Errorf("completions %+v, want one of ETIMEDOUT", got)
	}
}

// A request whose pages cannot be detached yet is owed to its client. It does not keep
// the younger ones of its ring from their deadline.
func TestOwedRequestStopsNoOther(t *testing.T) {
	f := beginRead(t, 8192, Options{Logger: slog.New(slog.DiscardHandler)})
	defer f.close()
	f.batch[0].off = 1 << 60 // the kernel refuses to replace pages there
	f.peer.prep(1, f.args)
	young, _, _ := f.ring.take(nil)
	expired := f.expire()
	if got := f.peer.reap(1, time.Second); expired != 1 || len(got) != 1 || got[0].Index != 1 {
		t.Errorf("%d requests expired, completions %+v; want the younger one", expired, got)
	}
	f.ring.complete(f.batch)
	f.ring.complete(young)
}

// A ring that is locked, because its client's memory does not answer, keeps no request of
// another ring from its deadline, be it of the same user or another.
func TestExpiryWaitsForNoOtherRing(t *testing.T) {
	files := newDirFiles()
	s, err := New(files, nobodyReadonly, blockio.Mover{}, Options{Deadline: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	peers := []*peer{newPeer(t, s, 4, ".r0.t0"), newPeer(t, s, 4, ".r0.t0")}
	if os.Getuid() == 0 {
		peers = append(peers, peerOf(t, s, 12345, 4))
	}
	var rings []*ring
	for _, p := range peers {
		p.prep(0, wire.Args{Len: 10})
		r := s.table.get(p.name).ring
		batch, _, _ := r.take(nil)
		defer r.complete(batch)
		rings = append(rings, r)
	}
	rings[0].mu.Lock()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.tickRings(ctx)
	}()
	answered := func(p *peer) {
		if got := p.reap(1, 20*time.Second); len(got) != 1 || got[0].Result != -int64(syscall.ETIMEDOUT) {
			t.Errorf("completions %+v, want one of ETIMEDOUT", got)
		}
	}
	for _, p := range peers[1:] {
		answered(p)
	}
	rings[0].unlock()
	answered(peers[0])
	cancel()
	<-ended
}

// Deadlines are watched while the pages of idle iovs are forgotten, which may take seconds.
func TestForgettingDelaysNoDeadline(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until pages are forgotten")
	}
	s, _ := serve(t, Options{})
	_, id, _, err := object(t, s, 4096, "")
	if err != nil {
		t.Fatal(err)
	}
	buf := s.table.buffer(id)
	buf.mu.Lock() // whoever forgets its pages waits
	defer buf.mu.Unlock()
	buf.lastUse.Store(1)
	last := s.clock.last.Load
	for end := time.Now().Add(30 * time.Second); buf.lastUse.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no pages were forgotten")
		}
	}
	begun := last()
	for end := time.Now().Add(20 * time.Second); last() < begun+int64(10*tickEvery); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the clock stands still")
		}
	}
}

// The log says why requests met their deadline: the file system is to blame only where a worker waited for it.
func TestCauseOfTimeout(t *testing.T) {
	log := &lines{}
	o := Options{Deadline: time.Second, Logger: slog.New(slog.NewTextHandler(log, nil))}
	later := int64(time.Hour)
	waiting := func(f *begun) {
		f.peer.prep(1, f.args)
		f.ring.mu.Lock()
		f.ring.admitGuarded()
		f.ring.unlock()
		f.ring.attend(later)
		if got := f.peer.reap(1, time.Minute); len(got) != 1 || got[0].Index != 1 || got[0].Result != -int64(syscall.ETIMEDOUT) {
			t.Errorf("completions %+v, want one of ETIMEDOUT", got)
		}
	}
	ended := func() *begun {
		f := beginRead(t, 4096, o)
		f.batch[0].done()
		f.ring.complete(f.batch)
		f.peer.reap(1, time.Minute)
		return f
	}
	says := func(cause string) {
		t.Helper()
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `msg="requests timed out" cause="`+cause) {
			t.Errorf("want %q in the log:\n%s", cause, text)
		}
		log.reset()
	}

	busy := ended()
	defer busy.close()
	waiting(busy)
	says("their turn did not come: other requests kept all workers busy")
	waiting(busy) // said already

	behind := ended()
	defer behind.close()
	behind.ring.poller.stuck = 1
	waiting(behind)
	behind.ring.poller.stuck = 0
	says("their turn did not come: workers wait for the data directory's file system")

	f := beginRead(t, 4096, o)
	defer f.close()
	f.ring.attend(later)
	f.ring.complete(f.batch)
	says("the data directory's file system does not answer")
}

// A request that is taken again, because its worker is stuck in another one, is counted once.
func TestRescuedIsCountedOnce(t *testing.T) {
	f := beginRead(t, 4096, Options{Deadline: time.Second, Logger: slog.New(slog.DiscardHandler)})
	defer f.close()
	f.peer.prep(1, f.args)
	behind, _, _ := f.ring.take(nil)
	f.ring.mu.Lock()
	f.ring.rescue(math.MaxInt64)
	f.ring.unlock()
	again, _, _ := f.ring.take(nil)
	if reads := f.s.ClientTraffic()[0].Reads; len(again) != 1 || reads.Queued.Total() != 2 || reads.Batched != 2 {
		t.Errorf("%d were taken again, and of two %d and %d counted", len(again), reads.Queued.Total(), reads.Batched)
	}
	f.ring.attend(int64(time.Hour))
	f.ring.complete(again)
	f.ring.complete(behind)
	f.ring.complete(f.batch)
}
