package ringserver

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// taker is the only worker of a server that does not run.
type taker struct {
	*worker
	s    *Server
	p    *poller
	jobs []job // taken and not completed
}

func idle(t *testing.T) *taker {
	t.Helper()
	s, err := New(newDirFiles(), nobodyReadonly, blockio.Mover{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := s.poller(wire.Normal)
	w := &taker{worker: &worker{poller: p}, s: s, p: p}
	t.Cleanup(func() {
		w.complete()
		s.Close()
	})
	return w
}

// complete ends all jobs.
func (w *taker) complete() {
	for _, j := range w.jobs {
		w.p.finish(w.worker, j, j.ring.complete(j.batch))
	}
	w.jobs = nil
}

func (w *taker) ring(p *peer) *ring { return w.s.table.get(p.name).ring }

// peerOf returns a ring of another user, which needs root.
func peerOf(t *testing.T, s *Server, uid uint32, entries int) *peer {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: acting as another user needs root")
	}
	file := "kv3fs-test-" + wire.NewUUID().String()
	size := wire.RingBytes(entries)
	m, err := shm.Create(file, size, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Unmap)
	path := filepath.Join(shm.Dir, file)
	defer os.Remove(path)
	if err := os.Chown(path, int(uid), int(uid)); err != nil {
		t.Fatal(err)
	}
	name := wire.NewUUID().String() + ".r0.t0"
	if _, err := s.Register(cred.Caller{UID: uid, GID: uid}, name, path); err != nil {
		t.Fatal(err)
	}
	layout, _ := wire.LayoutOf(size)
	return &peer{t: t, name: name, m: m, layout: layout, sem: submitSemOf(t, s, uid, wire.Normal)}
}

// take takes until there is no more to take, at most n times, and returns whose turn it
// was.
func (w *taker) take(n int) (rings []*ring) {
	for range n {
		w.batch = nil
		j := w.p.take(w.worker)
		if j.ring != nil {
			rings, w.jobs = append(rings, j.ring), append(w.jobs, j)
		} else if !j.more {
			break
		}
	}
	return rings
}

// Users, rings and requests take turns, a piece at a time, whatever the others have
// submitted.
func TestTurns(t *testing.T) {
	w := idle(t)
	hog, other := peerOf(t, w.s, 12345, 1024), peerOf(t, w.s, 12346, 8)
	for i := range int32(1000) {
		hog.prep(i, wire.Args{Len: 1 << 30})
	}
	other.prep(0, wire.Args{Len: 128 << 10})
	first := w.ring(hog)
	second := w.ring(other)
	rings := w.take(1000)
	if at := slices.Index(rings, second); at < 0 || at > 1 {
		t.Errorf("the other user had turn %d, want the first or second", at)
	}
	moving := int64(0)
	for _, j := range w.jobs {
		if j.ring == first {
			moving += j.bytes
		}
		for _, q := range j.batch {
			if q.piece > pieceBytes {
				t.Errorf("a piece of %d bytes, want at most %d", q.piece, pieceBytes)
			}
		}
	}
	if most := int64(inflightBytes + quantumMostBytes); moving > most || moving < inflightBytes {
		t.Errorf("%d bytes in flight for one user, want about %d", moving, inflightBytes)
	}
}

// A user's rings take turns, whatever one of them has submitted.
func TestTurnsOfRings(t *testing.T) {
	w := idle(t)
	full, other := newPeer(t, w.s, 1024, ".r0.t0"), newPeer(t, w.s, 8, ".r0.t0")
	for i := range int32(1000) {
		full.prep(i, wire.Args{Len: 1 << 30})
	}
	other.prep(0, wire.Args{Len: 128 << 10})
	if rings := w.take(4); !slices.Contains(rings, w.ring(other)) {
		t.Error("a ring has four turns before another one of its user has any")
	}
}

// A ring's requests take turns: after a piece of a large one come those that were submitted
// meanwhile.
func TestTurnsOfRequests(t *testing.T) {
	w := idle(t)
	p := newPeer(t, w.s, 8, ".r0.t0")
	p.prep(0, wire.Args{Len: 1 << 30})
	if len(w.take(1)) != 1 {
		t.Fatal("no job")
	}
	large := w.jobs[0].batch[0]
	p.prep(1, wire.Args{Len: 4096})
	large.state.Store(stateRunning)
	w.s.continueAt(large, large.piece)
	w.complete() // a piece
	w.p.mark(w.ring(p).user)
	w.take(2)
	var indices []int32
	for _, j := range w.jobs {
		for _, q := range j.batch {
			indices = append(indices, q.index)
		}
	}
	if !slices.Equal(indices, []int32{0, 1}) {
		t.Errorf("after a piece of request 0 come %d, want a piece of 0 and request 1", indices)
	}
}

// One user's rings admit a bounded number of requests together.
func TestAdmittedPerUserIsBounded(t *testing.T) {
	w := idle(t)
	const rings = mostAdmitted/mostInflight + 4
	var all []*peer
	for range rings {
		r := peerOf(t, w.s, 12345, mostInflight)
		r.m.StoreInt32(wire.OffSqeHead, mostInflight) // of zeros
		all = append(all, r)
	}
	w.p.mark(w.ring(all[0]).user)
	admitted := 0
	w.take(2 * rings)
	for _, r := range all {
		admitted += w.ring(r).inflight.n
	}
	if admitted > mostAdmitted {
		t.Errorf("%d requests of one user are admitted, want at most %d", admitted, mostAdmitted)
	}
}

// A round of looks meets every ring that has a request, although others are removed and
// added while it lasts.
func TestLooksSkipNoRing(t *testing.T) {
	w := idle(t)
	var peers []*peer
	for range 4 * looksPerTurn {
		peers = append(peers, newPeer(t, w.s, 4, ".r0.t0"))
	}
	w.take(1000) // the looks at new rings
	u := w.ring(peers[0]).user
	var want []*ring
	for i, r := range peers {
		if i%8 == 7 {
			r.prep(0, wire.Args{})
			want = append(want, w.ring(r))
		}
	}
	w.p.mark(u)
	var met []*ring
	for i := 0; ; i++ {
		rings := w.take(1)
		met = append(met, rings...)
		w.p.mu.Lock()
		more := len(w.p.ready) > 0
		w.p.mu.Unlock()
		if !more {
			break
		}
		if i < 20 {
			// Those before the place where the round is, and so the others move.
			if err := w.s.Unregister(me, peers[i*8].name); err != nil {
				t.Fatal(err)
			}
			newPeer(t, w.s, 4, ".r0.t0")
		}
	}
	for _, r := range want {
		if !slices.Contains(met, r) {
			t.Fatal("a ring with a request was skipped")
		}
	}
}

// A ring whose requests cannot be admitted, because its client does not reap, gives no work,
// and is not even looked at when another user posts.
func TestStalledRingIsNotFound(t *testing.T) {
	w := idle(t)
	lazy, other := peerOf(t, w.s, 12345, 4), peerOf(t, w.s, 12346, 4)
	r := w.ring(lazy)
	for i := range int32(4) {
		lazy.prep(i, wire.Args{Len: 10})
	}
	if rings := w.take(10); len(rings) == 0 {
		t.Fatal("no job")
	}
	w.complete()
	for i := range int32(4) { // no completion slot is free
		lazy.prep(i, wire.Args{Len: 10})
	}
	w.p.mark(r.user)
	if rings := w.take(10); len(rings) != 0 {
		t.Errorf("a stalled ring was found")
	}
	other.prep(0, wire.Args{Len: 10})
	r.mu.Lock() // whoever looks at the ring now misses it
	w.p.mark(w.ring(other).user)
	rings := w.take(10)
	missed := r.missed.Load()
	r.mu.Unlock()
	if len(rings) != 1 || missed {
		t.Errorf("%d jobs after another user's post, the stalled ring was looked at: %v", len(rings), missed)
	}
}

// Nobody waits for a ring that is locked, for instance because its client's memory does not
// answer; it is found again when it is unlocked.
func TestLockedRingDelaysNobody(t *testing.T) {
	w := idle(t)
	slow, other := peerOf(t, w.s, 12345, 4), peerOf(t, w.s, 12346, 4)
	slow.prep(0, wire.Args{Len: 10})
	other.prep(0, wire.Args{Len: 10})
	r := w.ring(slow)
	r.mu.Lock()
	rings := w.take(10)
	if len(rings) != 1 || rings[0] == r {
		t.Errorf("%d jobs while a ring was locked, want the other ring's", len(rings))
	}
	r.unlock()
	if rings = w.take(10); len(rings) != 1 || rings[0] != r {
		t.Errorf("%d jobs after the ring was unlocked, want its own", len(rings))
	}
}

// A user whose rings end while workers are stuck in their requests gets no fresh share of
// the workers with its next ring.
func TestEndOfRingsFreesNoWorkers(t *testing.T) {
	w := idle(t)
	first := peerOf(t, w.s, 12345, 4)
	first.prep(0, wire.Args{Len: 10})
	r := w.ring(first)
	if rings := w.take(1); len(rings) != 1 {
		t.Fatal("no job")
	}
	if err := w.s.Unregister(r.cred, first.name); err != nil {
		t.Fatal(err)
	}
	second := peerOf(t, w.s, 12345, 4)
	if w.ring(second).user != r.user {
		t.Error("the user's stuck workers are forgotten")
	}
	if err := w.s.Unregister(r.cred, second.name); err != nil {
		t.Fatal(err)
	}
	w.take(10)
	w.complete()
	if n := len(w.p.users); n != 0 {
		t.Errorf("%d users are left", n)
	}
}

// A user with many stuck requests for a file does not keep others from it: its own memory
// may be what they wait for.
func TestStuckFileIsItsUsersOnly(t *testing.T) {
	w := idle(t)
	stuck, other := peerOf(t, w.s, 12345, 4), peerOf(t, w.s, 12346, 4)
	const ino = 7
	w.p.mu.Lock()
	w.p.stuckFiles[userFile{12345, ino}] = mostStuckPerFile
	w.p.noteStuckFiles()
	w.p.mu.Unlock()
	stuck.prep(0, wire.Args{FileIno: ino, Len: 10})
	other.prep(0, wire.Args{FileIno: ino, Len: 10})
	if rings := w.take(10); len(rings) != 1 || rings[0] != w.ring(other) {
		t.Errorf("%d jobs, want the other user's only", len(rings))
	}
}

// A second worker helps with reads and with writes to other files, not with more writes to
// the same file: the kernel makes them one by one.
func TestWritesToOneFileAreNotShared(t *testing.T) {
	for _, c := range []struct {
		what, suffix string
		files        int32
		want         bool
	}{
		{"reads of a file", ".r0.t0", 1, true},
		{"writes to a file", ".w0.t0", 1, false},
		{"writes to many files", ".w0.t0", 32, true},
	} {
		w := idle(t)
		p := newPeer(t, w.s, 64, c.suffix)
		for i := range int32(32) {
			p.prep(i, wire.Args{FileIno: uint64(1 + i%c.files), Len: 128 << 10})
		}
		if len(w.take(1)) != 1 {
			t.Fatalf("%s: no job", c.what)
		}
		if j := w.jobs[0]; j.share != c.want {
			t.Errorf("%s: shared %v, want %v", c.what, j.share, c.want)
		}
		w.complete()
	}
}
