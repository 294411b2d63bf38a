package ringserver

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

func pattern(n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// Case 27: one read with the right bytes, index and userdata.
func TestReadAndWrite(t *testing.T) {
	s, files := serve(t, Options{})
	content := pattern(3 << 20)
	ino := fileWith(t, files, content)
	buf, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r := newPeer(t, s, 128, ".r0.t0")
	r.prep(0, wire.Args{BufID: id, FileIno: ino, Len: 1 << 20, Userdata: 0xfeed})
	r.submit()
	got := r.reap(1, 10*time.Second)
	if want := []wire.Cqe{{Index: 0, Result: 1 << 20, Userdata: 0xfeed}}; !slices.Equal(got, want) {
		t.Fatalf("completions %v, want %v", got, want)
	}
	read := make([]byte, 1<<20)
	buf.CopyOut(read, 0)
	if !bytes.Equal(read, content[:1<<20]) {
		t.Error("bytes differ")
	}
	w := newPeer(t, s, 4, ".w0.t0")
	if n := w.one(wire.Args{BufID: id, BufOff: 5, FileIno: ino, FileOff: 3<<20 + 7, Len: 1000}); n != 1000 {
		t.Fatalf("write: %d", n)
	}
	if n := r.one(wire.Args{BufID: id, FileIno: ino, FileOff: 3 << 20, Len: 5000}); n != 1007 {
		t.Fatalf("read at the new end: %d, want 1007", n)
	}
	buf.CopyOut(read[:1007], 0)
	if !bytes.Equal(read[7:1007], content[5:1005]) || !bytes.Equal(read[:7], make([]byte, 7)) {
		t.Error("the written bytes read back differently")
	}
}

// Cases 43 to 46, 84 and the rest of 4.8: the errno of each malformed request.
func TestMalformedRequests(t *testing.T) {
	s, files := serve(t, Options{})
	ino := fileWith(t, files, pattern(1<<20))
	_, plain, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	_, blocks, _, err := object(t, s, 4<<20, ".b1048576")
	if err != nil {
		t.Fatal(err)
	}
	r := newPeer(t, s, 16, ".r0.t0")
	for _, c := range []struct {
		name string
		args wire.Args
		want int64
	}{
		{"unknown buffer", wire.Args{BufID: wire.NewUUID(), FileIno: ino, Len: 1}, -int64(syscall.EINVAL)},
		{"unknown file", wire.Args{BufID: plain, FileIno: 1 << 50, Len: 1}, -int64(syscall.EBADF)},
		{"beyond the buffer", wire.Args{BufID: plain, BufOff: 1<<20 - 10, FileIno: ino, Len: 11}, -int64(syscall.EINVAL)},
		{"beyond the buffer, in a cached view", wire.Args{BufID: plain, BufOff: 1<<20 - 10, FileIno: ino, Len: 11}, -int64(syscall.EINVAL)},
		{"offset beyond the buffer", wire.Args{BufID: plain, BufOff: 1<<20 + 1, FileIno: ino, Len: 0}, -int64(syscall.EINVAL)},
		{"offset + length overflow", wire.Args{BufID: plain, BufOff: 1 << 63, FileIno: ino, Len: 1 << 63}, -int64(syscall.EINVAL)},
		{"length overflow", wire.Args{BufID: plain, BufOff: 1, FileIno: ino, Len: 1<<64 - 1}, -int64(syscall.EINVAL)},
		{"to the last byte", wire.Args{BufID: plain, BufOff: 1<<20 - 10, FileIno: ino, Len: 10}, 10},
		{"across blocks", wire.Args{BufID: blocks, BufOff: 1<<20 - 4096, FileIno: ino, Len: 8192}, -int64(syscall.EINVAL)},
		{"at a block", wire.Args{BufID: blocks, BufOff: 1 << 20, FileIno: ino, Len: 8192}, 8192},
		{"a whole block", wire.Args{BufID: blocks, BufOff: 1 << 20, FileIno: ino, Len: 1 << 20}, 1 << 20},
		{"offset 2^63", wire.Args{BufID: plain, FileIno: ino, FileOff: 1 << 63, Len: 1}, -int64(syscall.EFBIG)},
		{"offset + length beyond 2^63", wire.Args{BufID: plain, FileIno: ino, FileOff: 1<<63 - 1, Len: 10}, -int64(syscall.EFBIG)},
		{"length 0", wire.Args{BufID: plain, FileIno: ino}, 0},
		{"at the end", wire.Args{BufID: plain, FileIno: ino, FileOff: 1 << 20, Len: 10}, 0},
		{"beyond the end", wire.Args{BufID: plain, FileIno: ino, FileOff: 1 << 40, Len: 10}, 0},
	} {
		if got := r.one(c.args); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	for _, index := range []int32{-1, 17, 1 << 30, -1 << 31} {
		r.prep(index, wire.Args{BufID: plain, FileIno: ino, Len: 1, Userdata: 9})
		r.submit()
		want := []wire.Cqe{{Index: index, Result: -int64(syscall.EINVAL), Userdata: 9}}
		if got := r.reap(1, 10*time.Second); !slices.Equal(got, want) {
			t.Errorf("index %d: %v, want %v", index, got, want)
		}
	}
}

// Cases 49 to 51: the three kinds of io_depth.
func TestDepthRules(t *testing.T) {
	s, files := serve(t, Options{})
	ino := fileWith(t, files, pattern(1<<20))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	read := wire.Args{BufID: id, FileIno: ino, Len: 100}

	fixed := newPeer(t, s, 16, ".r4.t0")
	for i := range int32(3) {
		fixed.prep(i, read)
	}
	fixed.submit()
	if got := fixed.reap(1, 100*time.Millisecond); len(got) != 0 {
		t.Errorf("depth 4 with 3 requests: %d completions", len(got))
	}
	for i := range int32(3) {
		fixed.prep(3+i, read)
	}
	fixed.submit()
	if got := fixed.reap(4, 10*time.Second); len(got) != 4 {
		t.Errorf("depth 4 with 6 requests: %d completions", len(got))
	}
	if got := fixed.reap(1, 50*time.Millisecond); len(got) != 0 {
		t.Errorf("depth 4 with 2 requests left: %d completions", len(got))
	}

	eager := newPeer(t, s, 16, ".r-4.t0")
	eager.prep(0, read)
	eager.prep(1, read)
	eager.submit()
	if got := eager.reap(2, 10*time.Second); len(got) != 2 {
		t.Errorf("depth -4 without timeout: %d completions of 2", len(got))
	}

	patient := newPeer(t, s, 16, ".r-4.t60")
	start := time.Now()
	patient.prep(0, read)
	patient.prep(1, read)
	patient.submit()
	if got := patient.reap(2, 10*time.Second); len(got) != 2 || time.Since(start) < 60*time.Millisecond {
		t.Errorf("depth -4 with timeout 60 ms: %d completions of 2 after %v", len(got), time.Since(start))
	}
	for i := range int32(4) {
		patient.prep(i, read)
	}
	patient.submit()
	if got := patient.reap(4, 10*time.Second); len(got) != 4 {
		t.Errorf("a full batch: %d of 4", len(got))
	}
}

// Case 56, under full load: every request completes exactly once.
func TestAllPrioritiesExactlyOnce(t *testing.T) {
	s, files := serve(t, Options{Workers: 8})
	ino := fileWith(t, files, pattern(1<<20))
	for _, suffix := range []string{".r0.ph.t0", ".r0.t0", ".r0.pl.t0", ".r-8.t1", ".r2.t0"} {
		t.Run(suffix, func(t *testing.T) {
			t.Parallel()
			_, id, _, err := object(t, s, 1<<20, "")
			if err != nil {
				t.Fatal(err)
			}
			const entries = 64
			p := newPeer(t, s, entries, suffix)
			var free []int32
			for i := range int32(entries) {
				free = append(free, i)
			}
			const total = 20000
			flying := map[int32]uint64{}
			for sent, done := 0, 0; done < total; {
				for len(free) > 0 && sent < total {
					i := free[0]
					free = free[1:]
					sent++
					flying[i] = uint64(sent)
					p.prep(i, wire.Args{BufID: id, BufOff: uint64(i) * 4096, FileIno: ino, FileOff: uint64(sent%200) * 4096, Len: 4096, Userdata: uint64(sent)})
				}
				p.submit()
				got := p.reap(1, 10*time.Second)
				if len(got) == 0 {
					t.Fatalf("stalled after %d of %d requests", done, total)
				}
				for _, c := range got {
					if c.Result != 4096 || flying[c.Index] != c.Userdata {
						t.Fatalf("completion %+v, want userdata %d", c, flying[c.Index])
					}
					delete(flying, c.Index)
					free = append(free, c.Index)
					done++
				}
			}
		})
	}
}

// A client that does not reap stalls only its own ring, until it reaps.
func TestUnreapedRingStallsOnlyItself(t *testing.T) {
	s, files := serve(t, Options{})
	ino := fileWith(t, files, pattern(4096))
	_, id, _, err := object(t, s, 4096, "")
	if err != nil {
		t.Fatal(err)
	}
	lazy := newPeer(t, s, 4, ".r0.t0")
	for i := range int32(4) {
		lazy.prep(i, wire.Args{BufID: id, FileIno: ino, Len: 10})
	}
	lazy.submit()
	other := newPeer(t, s, 4, ".r0.t0")
	for range 100 {
		other.one(wire.Args{BufID: id, FileIno: ino, Len: 10})
	}
	for i := range int32(4) { // more requests than completion slots
		lazy.prep(i, wire.Args{BufID: id, FileIno: ino, Len: 20})
	}
	lazy.submit()
	if got := lazy.reap(8, 5*time.Second); len(got) < 4 {
		t.Fatalf("only %d completions", len(got))
	} else if rest := lazy.reap(8-len(got), 5*time.Second); len(got)+len(rest) != 8 {
		t.Fatalf("%d completions of 8", len(got)+len(rest))
	}
}

// Cases 17 to 21 and the rest of 3.2 and 3.3: names and objects that are refused.
func TestRegistrationErrors(t *testing.T) {
	s, _ := serve(t, Options{})
	newObject := func(sizeBytes int64) string {
		name := "kv3fs-test-" + wire.NewUUID().String()
		m, err := shm.Create(name, sizeBytes, 0o600)
		if sizeBytes == 0 {
			f, err := os.Create(filepath.Join(shm.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		} else if err != nil {
			t.Fatal(err)
		} else {
			m.Unmap()
		}
		t.Cleanup(func() { shm.Remove(name) })
		return filepath.Join(shm.Dir, name)
	}
	ok := newObject(16528)
	regular := filepath.Join(t.TempDir(), "regular")
	if err := os.WriteFile(regular, pattern(16528), 0o600); err != nil {
		t.Fatal(err)
	}
	link := ok + "-link"
	if err := os.Symlink(ok, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(link) })
	fifo := ok + "-fifo"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(fifo) })
	sub := ok + "-dir"
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sub) })
	if err := os.WriteFile(filepath.Join(sub, "x"), pattern(16528), 0o600); err != nil {
		t.Fatal(err)
	}
	id := wire.NewUUID().String()
	for _, c := range []struct {
		why, name, target string
		want              error
	}{
		{"no uuid", "foo", ok, syscall.EIO},
		{"block 0", id + ".b0", ok, syscall.EINVAL},
		{"block beyond the object", id + ".b16529", ok, syscall.EINVAL},
		{"timeout without ring", id + ".t5", ok, syscall.EINVAL},
		{"priority x", id + ".r0.px", ok, syscall.EINVAL},
		{"negative timeout", id + ".r0.t-1", ok, syscall.EINVAL},
		{"flags base 10", id + ".r0.t0.f2", ok, syscall.EINVAL},
		{"depth beyond the ring", id + ".r129.t0", ok, syscall.EINVAL},
		{"missing", id, ok + "-none", syscall.EINVAL},
		{"a directory", id, sub, syscall.EINVAL},
		{"a fifo", id, fifo, syscall.EINVAL},
		{"outside", id, regular, syscall.EACCES},
		{"outside by dots", id, "/dev/shm/.." + regular, syscall.EACCES}, // /dev/tmp/... is missing: it is not looked at
		{"outside by more dots", id, "/dev/shm/../.." + regular, syscall.EACCES},
		{"through a link", id, link, syscall.EACCES},
		{"in a sub-directory", id, filepath.Join(sub, "x"), syscall.EACCES},
		{"relative", id, "dev/shm/x", syscall.EINVAL},
		{"empty object", id, newObject(0), syscall.EINVAL},
		{"empty ring object", id + ".r0.t0", newObject(0), syscall.EINVAL},
		{"tiny ring", id + ".r0.t0", newObject(4096), syscall.EINVAL},
		{"ring without entries", id + ".r-4.t0", newObject(4240), syscall.EINVAL},
		{"gpu memory", id + ".gdr.d0", "gdr://x", syscall.EINVAL},
		{"fine", id + ".r128.t0", ok, nil},
		{"twice", id + ".r128.t0", ok, syscall.EEXIST},
	} {
		if _, err := s.Register(me, c.name, c.target); err != c.want {
			t.Errorf("%s: %v, want %v", c.why, err, c.want)
		}
	}
	if _, err := s.Register(me, wire.NewUUID().String(), "/dev/shm//"+filepath.Base(ok)); err != nil {
		t.Errorf("double slash: %v", err)
	}
	if got := len(s.List(me.UID)); got != 2 {
		t.Errorf("%d registrations listed, want 2", got)
	}
	if err := s.Unregister(me, id+".r128.t0"); err != nil {
		t.Error(err)
	}
	if err := s.Unregister(me, id+".r128.t0"); err != syscall.ENOENT {
		t.Errorf("second unlink: %v", err)
	}
}

// Markers out of range detach the ring and leave the daemon serving.
func TestScribbledMarkersDetach(t *testing.T) {
	s, files := serve(t, Options{})
	ino := fileWith(t, files, pattern(4096))
	_, id, _, err := object(t, s, 4096, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{wire.OffSqeHead, wire.OffCqeTail} {
		for _, v := range []int32{-1, 5, 1 << 30} {
			bad := newPeer(t, s, 4, ".r0.t0")
			bad.m.StoreInt32(wire.OffSqeHead, 1)
			bad.m.StoreInt32(off, v)
			bad.submit()
			good := newPeer(t, s, 4, ".r0.t0")
			if n := good.one(wire.Args{BufID: id, FileIno: ino, Len: 10}); n != 10 {
				t.Fatalf("another ring got %d", n)
			}
			if err := s.Unregister(me, bad.name); err != nil {
				t.Error(err)
			}
		}
	}
}

// A client that shrinks its ring, its iov or a semaphore harms no other client.
func TestShrunkenMemory(t *testing.T) {
	s, files := serve(t, Options{})
	ino := fileWith(t, files, pattern(1<<20))
	buf, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	good := newPeer(t, s, 4, ".r0.t0")
	check := func(when string) {
		t.Helper()
		if n := good.one(wire.Args{BufID: id, FileIno: ino, Len: 4096}); n != 4096 {
			t.Fatalf("%s: %d", when, n)
		}
	}
	for _, size := range []int64{0, 4096} {
		bad := newPeer(t, s, 1024, ".r0.t0")
		bad.m.Shrink(size)
		s.poller(wire.Normal).wake()
		check("a ring shrunk")
	}
	if err := os.Truncate(good.sem.Path(), 0); err != nil {
		t.Fatal(err)
	}
	// The client's own post faults until the daemon has repaired the semaphore.
	for end := time.Now().Add(10 * time.Second); ; {
		if shm.Guard(func() { good.sem.Post() }) == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a shrunken semaphore was not repaired")
		}
		time.Sleep(time.Millisecond)
	}
	check("the semaphore shrunk")
	buf.Shrink(8192)
	if n := good.one(wire.Args{BufID: id, BufOff: 500000, FileIno: ino, Len: 4096}); n != -int64(syscall.EFAULT) {
		t.Errorf("read into a shrunken buffer: %d, want EFAULT", n)
	}
	check("the buffer shrunk")
}

// A client that writes random bytes over its ring, under -race, harms no other client.
func TestScribblerUnderLoad(t *testing.T) {
	s, files := serve(t, Options{Workers: 8})
	ino := fileWith(t, files, pattern(1<<20))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		rng := rand.New(rand.NewPCG(7, 7))
		for {
			bad := newPeer(t, s, 16, []string{".r0.t0", ".w0.t0", ".r-4.t1", ".r3.t0"}[rng.IntN(4)])
			for range 200 {
				select {
				case <-stop:
					return
				default:
				}
				bad.prep(rng.Int32N(20)-2, wire.Args{BufID: id, BufOff: rng.Uint64N(1 << 21), FileIno: ino, FileOff: rng.Uint64() >> rng.UintN(64), Len: rng.Uint64N(1 << uint(rng.IntN(22)))})
				bad.m.StoreInt32(int64(rng.IntN(int(wire.RingBytes(16))/4)*4), rng.Int32N(40)-2)
				bad.submit()
			}
			s.Unregister(me, bad.name)
		}
	}()
	scratch := fileWith(t, files, pattern(4096)) // the bad client may have written to the other file
	good := newPeer(t, s, 16, ".r0.t0")
	for range 3000 {
		if n := good.one(wire.Args{BufID: id, FileIno: scratch, Len: 4096}); n != 4096 {
			t.Fatalf("another ring got %d", n)
		}
	}
	close(stop)
	<-done
}

// Run answers all requests that were submitted before its context ended.
func TestStopDrains(t *testing.T) {
	files := newDirFiles()
	s, err := New(files, nobodyReadonly, blockio.Mover{}, Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ino := fileWith(t, files, pattern(1<<20))
	defer func() { files.files[ino].Close() }()
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r := newPeer(t, s, 64, ".r0.t0")
	for i := range int32(64) {
		r.prep(i, wire.Args{BufID: id, FileIno: ino, Len: 1 << 20})
	}
	r.submit()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if got := r.reap(64, 0); len(got) != 64 {
		t.Errorf("%d of 64 requests were answered", len(got))
	}
}

// The number of requests admitted at once is bounded, whatever the size of the ring and
// its depth, and all of them are answered.
func TestAdmissionIsBounded(t *testing.T) {
	const entries = 1 << 16
	for _, suffix := range []string{".r0.t0", ".r64.t0", ".r4096.t0", ".r20000.t0", ".r-64.t0"} {
		t.Run(suffix, func(t *testing.T) {
			s, _ := serve(t, Options{Workers: 2})
			r := newPeer(t, s, entries, suffix)
			e := s.table.get(r.name).ring
			want := entries
			if e.depth > 0 {
				want -= entries % int(e.depth) // the rest waits for a whole group
			}
			r.m.StoreInt32(wire.OffSqeHead, entries) // requests of zeros
			r.submit()
			seen := 0
			for done := 0; done < want; {
				got := len(r.reap(1, 10*time.Second))
				if got == 0 {
					t.Fatalf("stalled after %d of %d", done, want)
				}
				done += got
				e.mu.Lock()
				seen = max(seen, e.inflight.n)
				e.mu.Unlock()
			}
			if seen > mostInflight {
				t.Errorf("%d requests were in flight at once, want at most %d", seen, mostInflight)
			}
		})
	}
}

// A user cannot fill the whole table, nor shadow another user's buffer.
func TestUsersShareTheTable(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: acting as another user needs root")
	}
	s, _ := serve(t, Options{MaxRegistrations: 16})
	other := cred.Caller{UID: 12345, GID: 12345}
	file := "kv3fs-test-" + wire.NewUUID().String()
	m, err := shm.Create(file, 4096, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	path := filepath.Join(shm.Dir, file)
	defer os.Remove(path)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		want := error(nil)
		if i == 4 {
			want = syscall.EMFILE
		}
		if _, err := s.Register(other, wire.NewUUID().String(), path); err != want {
			t.Errorf("registration %d: %v, want %v", i+1, err, want)
		}
	}
	id := wire.NewUUID().String()
	if _, err := s.Register(me, id, path); err != nil {
		t.Errorf("another user: %v", err)
	}
	for _, r := range s.List(other.UID) {
		if err := s.Unregister(other, r.Name); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Register(other, id+".b4096", path); err != syscall.EPERM {
		t.Errorf("a buffer with another user's id: %v, want EPERM", err)
	}
}
