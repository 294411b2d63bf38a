package ringserver

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/rows"
	"github.com/kv3fs/kv3fs/internal/histogram"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// What a client moves counts by direction and size, once each, and as much in all places where it counts.
func TestClientTraffic(t *testing.T) {
	s, files := serve(t, Options{})
	const big = 128 << 10
	ino := fileWith(t, files, pattern(big))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r, w := newPeer(t, s, 16, ".r0.t0"), newPeer(t, s, 4, ".w0.t0")
	const batches, inBatch = 10, 12
	for range batches {
		for i := range inBatch {
			r.prep(int32(i), wire.Args{BufID: id, FileIno: ino, Len: 4096})
		}
		r.submit()
		if got := r.reap(inBatch, 10*time.Second); len(got) != inBatch {
			t.Fatalf("%d completions for %d requests", len(got), inBatch)
		}
	}
	if n := r.one(wire.Args{BufID: id, FileIno: ino, Len: big}); n != big {
		t.Fatalf("read: %d", n)
	}
	if n := r.one(wire.Args{BufID: id, FileIno: ino + 1000, Len: 4097}); n != -int64(syscall.EBADF) {
		t.Fatalf("a read of no file: %d", n)
	}
	if n := w.one(wire.Args{BufID: id, FileIno: ino, Len: 5}); n != 5 {
		t.Fatalf("write: %d", n)
	}

	all := s.ClientTraffic()
	if len(all) != 2 || all[0].Process != commandOf(os.Getpid()) || all[0].UID != me.UID || all[0].Other || !all[1].Other {
		t.Fatalf("%+v", all)
	}
	reads, writes := all[0].Reads, all[0].Writes
	for i, want := range []struct{ requests, bytes int64 }{{batches * inBatch, batches * inBatch * 4096}, {1, 0}, {1, big}, {}, {}} {
		if got := reads.Sizes[i]; got.Took.Total() != want.requests || got.Bytes != want.bytes {
			t.Errorf("reads of size %d: %d requests, %d bytes, want %+v", i, got.Took.Total(), got.Bytes, want)
		}
	}
	const requestsRead = batches*inBatch + 2
	if got := reads.Queued.Total(); got != requestsRead {
		t.Errorf("%d reads waited of %d", got, requestsRead)
	}
	if writes.Sizes[0].Took.Total() != 1 || writes.Sizes[0].Bytes != 5 || writes.Queued.Total() != 1 {
		t.Errorf("writes: %+v", writes)
	}
	taken, most := int64(0), int64(0)
	for i, n := range reads.Batches {
		taken += n
		if i < len(batchBounds) {
			most += n * int64(batchBounds[i])
		}
	}
	if reads.Batched != requestsRead || taken > requestsRead || taken == 0 || most < requestsRead || reads.Batches[len(batchBounds)] != 0 {
		t.Errorf("%d requests in batches %v", reads.Batched, reads.Batches)
	}
	p := s.Processes()[0]
	if p.Reads != (Amount{requestsRead, batches*inBatch*4096 + big, 1}) || p.Writes != (Amount{1, 5, 0}) {
		t.Errorf("process: %+v, %+v", p.Reads, p.Writes)
	}
	var directories int64
	byDirectory, _ := s.Traffic()
	for _, d := range byDirectory {
		directories += requests(d.Reads)
	}
	if directories != requestsRead {
		t.Errorf("%d requests by directory", directories)
	}
	for end := time.Now().Add(30 * time.Second); s.Load(wire.Normal) != (Load{}); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("with nothing to do: %+v", s.Load(wire.Normal))
		}
	}
}

// A request that the daemon has seen in the ring and not admitted waits from then on.
func TestQueuedSinceItWasSeen(t *testing.T) {
	s, files := serve(t, Options{})
	ino := fileWith(t, files, pattern(4096))
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r := newPeer(t, s, 8, ".r2.t0") // in twos
	r.prep(0, wire.Args{BufID: id, FileIno: ino, Len: 8})
	r.submit()
	seen := func() bool {
		ring := s.table.get(r.name).ring
		ring.mu.Lock()
		defer ring.mu.Unlock()
		return ring.seen == 1
	}
	for end := time.Now().Add(30 * time.Second); !seen(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the daemon has not seen the request")
		}
	}
	const wait = 30 * time.Millisecond
	time.Sleep(wait)
	r.prep(1, wire.Args{BufID: id, FileIno: ino, Len: 8})
	r.submit()
	if got := r.reap(2, 10*time.Second); len(got) != 2 {
		t.Fatalf("%d completions", len(got))
	}
	queued := s.ClientTraffic()[0].Reads.Queued
	if queued.Total() != 2 || queued.Sum < wait {
		t.Errorf("%d requests waited for %v, the first one for more than %v", queued.Total(), queued.Sum, wait)
	}
}

// However many clients there are, a bounded number is counted apart.
func TestClientsAreBounded(t *testing.T) {
	s, _ := serve(t, Options{})
	for i := range 3 * mostClients {
		s.clients.Of(1, clientKey{fmt.Sprint(i), 1}).reads.batched.Add(1)
	}
	if c := s.clients.Of(2, clientKey{"vllm", 2}); c == s.clients.Other() {
		t.Error("names of one user's processes leave no row to another user")
	}
	all := s.ClientTraffic()
	var n int64
	for _, c := range all {
		n += c.Reads.Batched
	}
	if len(all) != mostClients+1 || n != 3*mostClients-1 || !all[mostClients].Other || all[mostClients].Reads.Batched != 2*mostClients {
		t.Errorf("%d clients, %d batches", len(all), n)
	}
}

func TestRefusals(t *testing.T) {
	s, _ := serve(t, Options{})
	target := filepath.Join(shm.Dir, "kv3fs-test-"+wire.NewUUID().String())
	for _, name := range []string{"nonsense", wire.NewUUID().String(), wire.NewUUID().String() + ".r0.t0"} {
		if _, err := s.Register(me, name, target); err == nil {
			t.Fatal("registered an object that there is not")
		}
	}
	want := map[Refused]int64{NameRefused: 1, IovRefused: 1, RingRefused: 1}
	for _, r := range s.Refusals() {
		want[r.What] -= r.Times
		if r.Times > 0 && r.What != NameRefused && r.Errno != syscall.EINVAL {
			t.Errorf("%+v", r)
		}
	}
	for what, left := range want {
		if left != 0 {
			t.Errorf("%d refusals of %v are not counted", left, what)
		}
	}
}

// A process chooses the name of its command, and metrics show it.
func TestCommandOf(t *testing.T) {
	if got := commandOf(1 << 30); got != "" {
		t.Errorf("a process that there is not is called %q", got)
	}
	comm := fmt.Sprintf("/proc/self/task/%d/comm", os.Getpid())
	before, err := os.ReadFile(comm)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(comm, []byte("a\xff\"\n\x1bb"), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(comm, before, 0o600)
	if got := commandOf(os.Getpid()); got != "a?\"??b" {
		t.Errorf("%q", got)
	}
}

// A ring whose client's row was given away does not count in that row any more.
func TestRingOfClientWithoutRow(t *testing.T) {
	r := &ring{server: &Server{clients: rows.New[clientKey](mostClients, newClientTraffic)}}
	clients := r.server.clients
	r.countAs(clientKey{"a", 1})
	had := r.client
	for i := range mostClients - 1 {
		clients.Of(1, clientKey{fmt.Sprint(i), 1}).reads.batched.Add(1)
	}
	clients.Of(2, clientKey{"b", 2})
	if !had.Gone() {
		t.Fatal("the row that was not used is not given away")
	}
	r.clientRow().batched.Add(1)
	if had.reads.batched.Load() != 0 || clients.Other().reads.batched.Load() != 1 {
		t.Error("it counts where nobody looks")
	}
}

// Slow requests leave an example.
func TestExamples(t *testing.T) {
	r := &ring{server: &Server{clock: newClock(time.Hour), traffic: rows.New[string](mostDirectories, newDirectoryTraffic)}, client: newClientTraffic(), process: &processTraffic{pid: 7}}
	r.postedAt = int64(time.Minute)
	q := &request{admitted: int64(time.Minute - 30*time.Millisecond), args: wire.Args{FileIno: 99, Len: 1}}
	r.note(q, 1)
	r.count()
	s := r.server
	bucket := histogram.Bucket(trafficBounds[:], 30*time.Millisecond)
	all, _ := s.Traffic()
	e := all[0].Reads.Examples[bucket]
	if e == nil || e.File != 99 || e.PID != 7 || e.Took != 30*time.Millisecond || time.Since(e.At) > time.Hour {
		t.Errorf("%+v", e)
	}
}
