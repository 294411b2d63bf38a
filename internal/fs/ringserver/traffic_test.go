package ringserver

import (
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// Every completion counts once: its bytes, its time, and why it failed.
func TestTraffic(t *testing.T) {
	s, files := serve(t, Options{})
	ino := fileWith(t, files, pattern(8<<10))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r, w := newPeer(t, s, 4, ".r0.t0"), newPeer(t, s, 4, ".w0.t0")
	if n := w.one(wire.Args{BufID: id, FileIno: ino, Len: 4096}); n != 4096 {
		t.Fatalf("write: %d", n)
	}
	for range 3 {
		if n := r.one(wire.Args{BufID: id, FileIno: ino, Len: 1000}); n != 1000 {
			t.Fatalf("read: %d", n)
		}
	}
	if n := r.one(wire.Args{BufID: id, FileIno: ino + 1000, Len: 1000}); n != -int64(syscall.EBADF) {
		t.Fatalf("a read of no file: %d", n)
	}
	reads, writes := s.Traffic()
	if requests(reads) != 4 || reads.Bytes != 3000 || failures(reads, syscall.EBADF) != 1 || failures(reads, 0) != 0 || reads.Took <= 0 {
		t.Errorf("reads: %+v", reads)
	}
	if requests(writes) != 1 || writes.Bytes != 4096 || writes.Took <= 0 {
		t.Errorf("writes: %+v", writes)
	}
}

func TestTrafficBuckets(t *testing.T) {
	var all traffic
	for _, took := range []time.Duration{-1, 0, 10 * time.Microsecond, 11 * time.Microsecond, 5 * time.Second, time.Hour} {
		all.note(1, took)
	}
	all.note(-int64(syscall.EIO), 0)
	all.note(-int64(syscall.EXDEV), 0)
	all.note(-1<<40, 0)
	got := all.read()
	if got.Within[0] != 6 || got.Within[1] != 1 || got.Within[len(got.Within)-2] != 1 || got.Within[len(got.Within)-1] != 1 || got.Bytes != 6 {
		t.Errorf("%+v", got)
	}
	if failures(got, syscall.EIO) != 1 || failures(got, 0) != 2 {
		t.Errorf("%+v", got.Failed)
	}
}

func requests(t Traffic) (n int64) {
	for _, within := range t.Within {
		n += within
	}
	return n
}

func failures(t Traffic, errno syscall.Errno) int64 {
	for _, f := range t.Failed {
		if f.Errno == errno {
			return f.Requests
		}
	}
	return -1
}
