package ringserver

import (
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/rows"
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
	all, _ := s.Traffic()
	if len(all) != 2 || all[0].Directory != filepath.Dir(files.names[ino]) || all[1].Directory != "" {
		t.Fatalf("%+v", all)
	}
	if reads := all[0].Reads; requests(reads) != 3 || reads.Bytes != 3000 || failures(reads, syscall.EBADF) != 0 || reads.Took <= 0 {
		t.Errorf("reads: %+v", reads)
	}
	if writes := all[0].Writes; requests(writes) != 1 || writes.Bytes != 4096 || writes.Took <= 0 {
		t.Errorf("writes: %+v", writes)
	}
	if other := all[1]; requests(other.Reads) != 1 || other.Reads.Bytes != 0 || failures(other.Reads, syscall.EBADF) != 1 || failures(other.Reads, 0) != 0 || requests(other.Writes) != 0 {
		t.Errorf("without a file: %+v", other)
	}
}

// Requests of one batch count in the directories of their own files, and a request that is used
// again in that of its next file.
func TestTrafficByDirectory(t *testing.T) {
	s, files := serve(t, Options{})
	var inos [3]uint64
	for i := range inos {
		inos[i] = fileWith(t, files, pattern(4096))
	}
	_, id, _, err := object(t, s, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r := newPeer(t, s, 8, ".r0.t0")
	const rounds = 20
	for range rounds {
		index := int32(0)
		for i, ino := range inos {
			for range i + 1 {
				r.prep(index, wire.Args{BufID: id, FileIno: ino, Len: 8})
				index++
			}
		}
		r.prep(index, wire.Args{BufID: id, FileIno: inos[0] + 1<<40, Len: 8})
		r.submit()
		if got := r.reap(7, 10*time.Second); len(got) != 7 {
			t.Fatalf("%d completions for 7 requests", len(got))
		}
	}
	all, _ := s.Traffic()
	want := map[string]int64{filepath.Dir(files.names[inos[0]]): 1, filepath.Dir(files.names[inos[1]]): 2, filepath.Dir(files.names[inos[2]]): 3, "": 1}
	for _, d := range all {
		if n := requests(d.Reads); n != rounds*want[d.Directory] {
			t.Errorf("%q: %d requests, want %d", d.Directory, n, rounds*want[d.Directory])
		}
	}
	if len(all) != len(want) {
		t.Errorf("%+v", all)
	}
}

// However many directories there are, a bounded number is counted apart, and nothing is lost.
func TestTrafficDirectoriesAreBounded(t *testing.T) {
	s := Server{traffic: rows.New[string](mostDirectories, newDirectoryTraffic)}
	var group sync.WaitGroup
	const directories, requestsEach = 3 * mostDirectories, 10
	for i := range directories {
		group.Go(func() {
			for range requestsEach {
				s.traffic.Of(1, fmt.Sprint("/", i)).of(i%2 == 0).bytes.Add(1)
			}
		})
	}
	group.Wait()
	all, _ := s.Traffic()
	if len(all) != mostDirectories+1 {
		t.Fatalf("%d directories", len(all))
	}
	var n int64
	for _, d := range all {
		n += d.Reads.Bytes + d.Writes.Bytes
	}
	if n != directories*requestsEach {
		t.Errorf("%d requests are counted of %d", n, directories*requestsEach)
	}
	before := all[mostDirectories]
	if d := s.traffic.Of(2, "/another"); d == s.traffic.Other() {
		t.Error("one user's directories leave no row to another user")
	}
	all, former := s.Traffic()
	if after := all[mostDirectories]; after.Directory != "" || after.Reads.Bytes+after.Writes.Bytes != before.Reads.Bytes+before.Writes.Bytes {
		t.Errorf("others have moved %+v, and before %+v", after, before)
	}
	if n := former.Reads.Bytes + former.Writes.Bytes; n == 0 || n > requestsEach {
		t.Errorf("the directory that has lost its row has moved %d bytes", n)
	}
}

func TestTrafficErrnos(t *testing.T) {
	all := newTraffic()
	for _, result := range []int64{-int64(syscall.EIO), -int64(syscall.EXDEV), -1 << 40} {
		all.fail(result)
	}
	if got := all.read(); failures(got, syscall.EIO) != 1 || failures(got, 0) != 2 {
		t.Errorf("%+v", got.Failed)
	}
}

func requests(t Moved) (n int64) {
	for _, within := range t.Within {
		n += within
	}
	return n
}

func failures(t Moved, errno syscall.Errno) int64 {
	for _, f := range t.Failed {
		if f.Errno == errno {
			return f.Requests
		}
	}
	return -1
}
