package ringserver

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// BenchmarkReads measures the daemon's side of reads from the page cache: an op is one
// request; the client runs in the same process.
func BenchmarkReads(b *testing.B) {
	for _, c := range []struct {
		bytes uint64
		depth int
	}{{4096, 64}, {131072, 32}, {1 << 20, 32}, {4 << 20, 32}} {
		b.Run(fmt.Sprintf("bytes=%d/depth=%d", c.bytes, c.depth), func(b *testing.B) {
			s, files := serve(b, Options{})
			path := filepath.Join(shm.Dir, "kv3fs-bench-"+wire.NewUUID().String())
			if err := os.WriteFile(path, bytes.Repeat([]byte{0xa5}, 128<<20), 0o600); err != nil {
				b.Fatal(err)
			}
			ino := files.add(b, path, os.O_RDWR)
			os.Remove(path)
			m, id, _, err := object(b, s, int64(c.bytes)*int64(c.depth), "")
			if err != nil {
				b.Fatal(err)
			}
			p := newPeer(b, s, c.depth, ".r0.t0")
			var free []int32
			for i := range int32(c.depth) {
				free = append(free, i)
			}
			b.SetBytes(int64(c.bytes))
			b.ResetTimer()
			before := cpuTime(b)
			for sent, done := 0, 0; done < b.N; {
				for len(free) > 0 && sent < b.N {
					i := free[len(free)-1]
					free = free[:len(free)-1]
					p.prep(i, wire.Args{BufID: id, BufOff: uint64(i) * c.bytes, FileIno: ino, FileOff: uint64(sent) * c.bytes % (128 << 20), Len: c.bytes})
					sent++
				}
				p.submit()
				for _, q := range p.reap(1, 10*time.Second) {
					if q.Result != int64(c.bytes) {
						b.Fatal(q)
					}
					free = append(free, q.Index)
					done++
				}
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
			// Memory begins as zeros, and the slots are used from the last one on.
			used := m.Bytes()[uint64(max(0, c.depth-b.N))*c.bytes:]
			if n := bytes.Count(used, []byte{0xa5}); n != len(used) {
				b.Errorf("%d bytes of %d were read", n, len(used))
			}
		})
	}
}

// BenchmarkCreateDestroy measures registering and unregistering a ring, without FUSE.
func BenchmarkCreateDestroy(b *testing.B) {
	s, _ := serve(b, Options{})
	file := "kv3fs-bench-" + wire.NewUUID().String()
	m, err := shm.Create(file, wire.RingBytes(128), 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Unmap()
	defer shm.Remove(file)
	for b.Loop() {
		name := wire.NewUUID().String() + ".r0.t0"
		if _, err := s.Register(me, name, filepath.Join(shm.Dir, file)); err != nil {
			b.Fatal(err)
		}
		if err := s.Unregister(me, name); err != nil {
			b.Fatal(err)
		}
	}
}

// cpuTime returns the processor time of this process, which is steadier than the clock
// on a machine that others use.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
