package curve

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// perEntry is less than the keeper takes of memory for each of a million files: 82 bytes were measured, with 10,000
// directories, and 66 (63 MiB) of a whole daemon.
const perEntry = 64

// Of a million entries the curve takes less than a hundredth of what the keeper takes for them, however many are used.
func TestMemoryIsAHundredthOfTheKeepers(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	e := New(Options{})
	most := uint64(0)
	for key := range uint64(1_000_000) {
		e.Use(key, 1<<20, int64(key), false)
		if key%100_000 == 0 {
			most = max(most, heap()-before)
		}
	}
	most = max(most, heap()-before)
	runtime.KeepAlive(e)
	t.Logf("%d KiB", most>>10)
	if limit := uint64(1_000_000 * perEntry / 100); most > limit {
		t.Errorf("the curve of a million entries takes %d bytes; a hundredth of the keeper's are %d", most, limit)
	}
}

// A use costs more than a hash, a count and two comparisons only if its entry is followed: of a million entries, less than a hundredth are.
func TestFewUsesAreFollowed(t *testing.T) {
	const keys = 1_000_000
	e := New(Options{})
	for key := range uint64(keys) {
		e.Use(key, 1<<20, int64(key), false)
	}
	n := 0
	for key := range uint64(keys) {
		if e.Follows(key) {
			n++
		}
	}
	if n == 0 || n > keys/100 {
		t.Errorf("%d of %d entries are followed", n, keys)
	}
}

// BenchmarkShare prints what part of the processor's time of a read the curve takes for one use: of a million entries, of which it
// follows a sample, and of 8192, all of which it follows. The reads are from the page cache by system call, to which a ring adds
// its own; and a file that is read in many parts within a second is used once.
func BenchmarkShare(b *testing.B) {
	f, err := os.CreateTemp(b.TempDir(), "")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	if _, err := f.Write(buf); err != nil {
		b.Fatal(err)
	}
	// The process's own, which other work on the machine does not lengthen much.
	cpu := func() float64 {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return float64(t.Nano())
	}
	read := func(n int) (ns float64) {
		const times = 500
		began := cpu()
		for range times {
			if _, err := f.ReadAt(buf[:n], 0); err != nil {
				b.Fatal(err)
			}
		}
		return (cpu() - began) / times
	}
	for _, entries := range []uint64{8192, 1_000_000} {
		b.Run(fmt.Sprint("entries=", entries), func(b *testing.B) {
			e := New(Options{})
			rng := rand.New(rand.NewPCG(1, 1))
			keys := make([]uint64, 1<<16)
			for i := range keys {
				keys[i] = xxh3.HashString(fmt.Sprint(rng.Uint64N(entries)))
			}
			use := func(i int) {
				if key := keys[i%len(keys)]; e.Follows(key) {
					e.Use(key, 1<<20, int64(i), true)
				} else {
					e.Pass(int64(i), true)
				}
			}
			for i := range entries {
				e.Use(xxh3.HashString(fmt.Sprint(i)), 1<<20, int64(i), false)
			}
			runtime.GC()
			b.ResetTimer()
			began := cpu()
			for i := range b.N {
				use(i)
			}
			ns := (cpu() - began) / float64(b.N)
			b.ReportMetric(ns, "cpu-ns/op")
			b.ReportMetric(100*ns/read(4096), "%of4KiB")
			b.ReportMetric(100*ns/read(1<<20), "%of1MiB")
		})
	}
}
