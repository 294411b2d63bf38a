package ringserver

import (
	"bytes"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// room has no space left until free is closed, and none ever for who does not wait so long.
type room struct {
	free     chan struct{}
	reserved atomic.Int64 // and not settled
	waiting  atomic.Int32
}

func (s dirFile) Reserve(_, n int64, deadline time.Time, _ <-chan struct{}) (int64, error) {
	if s.room == nil {
		return 0, nil
	}
	select {
	case <-s.room.free:
		s.room.reserved.Add(n)
		return n, nil
	default:
	}
	if deadline.IsZero() {
		return 0, syscall.EAGAIN
	}
	s.room.waiting.Add(1)
	defer s.room.waiting.Add(-1)
	limit := time.NewTimer(time.Until(deadline))
	defer limit.Stop()
	select {
	case <-s.room.free:
		s.room.reserved.Add(n)
		return n, nil
	case <-limit.C:
		return 0, syscall.ENOSPC
	}
}

func (s dirFile) Settle(reserved int64) {
	if s.room != nil {
		s.room.reserved.Add(-reserved)
	}
}

// limited makes a file whose writes wait for room.
func limited(t *testing.T, files *dirFiles) (ino uint64, r *room) {
	t.Helper()
	ino = fileWith(t, files, bytes.Repeat([]byte{'f'}, 4096))
	r = &room{free: make(chan struct{})}
	files.mu.Lock()
	defer files.mu.Unlock()
	if files.rooms == nil {
		files.rooms = make(map[uint64]*room)
	}
	files.rooms[ino] = r
	return ino, r
}

func submitWrites(p *peer, id wire.UUID, ino uint64, n int) {
	for i := range n {
		p.prep(int32(i), wire.Args{BufID: id, FileIno: ino, FileOff: uint64(i) * 4096, Len: 4096, Userdata: uint64(i)})
	}
	p.submit()
}

// Writes that wait for room keep no worker from others, and are served once there is some.
func TestWritesWaitForRoom(t *testing.T) {
	s, files := serve(t, Options{Deadline: time.Minute, Workers: 1})
	full, r := limited(t, files)
	other := fileWith(t, files, bytes.Repeat([]byte{'o'}, 4096))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	const writes = 16
	waits, reads := newPeer(t, s, writes+1, ".w0.t0"), newPeer(t, s, 8, ".r0.t0")
	submitWrites(waits, id, full, writes)
	for r.waiting.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	p := s.poller(wire.Normal)
	p.mu.Lock()
	if p.stuck == 0 {
		t.Error("a worker that waits does not count as stuck from the start")
	}
	p.mu.Unlock()
	for range 100 {
		if n := reads.one(wire.Args{BufID: id, FileIno: other, Len: 4096}); n != 4096 {
			t.Fatalf("a read beside them: %d", n)
		}
	}
	if got := waits.reap(0, 0); len(got) > 0 {
		t.Errorf("answered without room: %+v", got)
	}
	close(r.free)
	got := waits.reap(writes, 30*time.Second)
	if len(got) != writes {
		t.Fatalf("%d of %d", len(got), writes)
	}
	for _, c := range got {
		if c.Result != 4096 {
			t.Errorf("%+v", c)
		}
	}
	p.awaitNoneStuck(t)
	for end := time.Now().Add(20 * time.Second); r.reserved.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes were not settled", r.reserved.Load())
		}
	}
}

// A write that gets no room is told so before its deadline, which would blame the disk.
func TestWriteWithoutRoom(t *testing.T) {
	s, files := serve(t, Options{Deadline: time.Second, Workers: 1})
	full, r := limited(t, files)
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	const writes = 100 // more than may wait in workers
	p := newPeer(t, s, writes+1, ".w0.t0")
	submitWrites(p, id, full, writes)
	results := map[int64]int{}
	for _, c := range p.reap(writes, 30*time.Second) {
		results[c.Result]++
	}
	noSpace, late := results[-int64(syscall.ENOSPC)], results[-int64(syscall.ETIMEDOUT)]
	if noSpace == 0 || noSpace+late != writes {
		t.Errorf("results %v", results)
	}
	s.poller(wire.Normal).awaitNoneStuck(t)
	for end := time.Now().Add(20 * time.Second); r.reserved.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes were not settled", r.reserved.Load())
		}
	}
}
