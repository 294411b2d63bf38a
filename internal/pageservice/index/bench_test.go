package index

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

const (
	benchBatch = 512
	million    = 1 << 20
)

var benchSpace = pageservice.Space{Set: "vllm"}

// benchKeys are keys as long as those of SGLang, in batches.
func benchKeys(n int) [][]string {
	var batches [][]string
	for i := 0; i < n; i += benchBatch {
		batch := make([]string, benchBatch)
		for k := range batch {
			batch[k] = fmt.Sprintf("%064x", (i+k)*2654435761)
		}
		batches = append(batches, batch)
	}
	return batches
}

func benchIndex(tb testing.TB, dir string, numPages int64) *Index {
	tb.Helper()
	b, err := open(dir, Options{})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := b.Initialize(context.Background(), benchSpace, 0, pageservice.RankOptions{NumPages: numPages}); err != nil {
		tb.Fatal(err)
	}
	return b
}

// save reserves and confirms a batch, as a writer does.
func save(tb testing.TB, b *Index, keys []string) {
	tb.Helper()
	ctx := context.Background()
	grants, err := b.Reserve(ctx, benchSpace, 0, keys, true)
	if err != nil {
		tb.Fatal(err)
	}
	written := make([]pageservice.Placed, len(keys))
	for i, g := range grants {
		written[i] = pageservice.Placed{Key: keys[i], Page: g.Page}
	}
	if c, err := b.Confirm(ctx, benchSpace, 0, written, nil); err != nil || c.Keys != len(keys) {
		tb.Fatal(c, err)
	}
}

// BenchmarkExists512 queries 512 keys of a million.
func BenchmarkExists512(b *testing.B) {
	x := benchIndex(b, b.TempDir(), million)
	defer x.Close()
	batches := benchKeys(million)
	for _, keys := range batches {
		save(b, x, keys)
	}
	defer reportCPU(b)()
	for i := 0; b.Loop(); i++ {
		if _, err := x.Exists(context.Background(), benchSpace, batches[i%len(batches)]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSave512 is a reservation and a confirmation of 512 new keys, both durable.
// Half of the time pages of evicted keys are taken.
func BenchmarkSave512(b *testing.B) {
	x := benchIndex(b, b.TempDir(), 64*benchBatch)
	defer x.Close()
	batches := benchKeys(256 * benchBatch)
	defer reportCPU(b)()
	for i := 0; b.Loop(); i++ {
		save(b, x, batches[i%len(batches)])
	}
}

// BenchmarkReopenMillion is the time from opening an index of a million keys to its
// first answer. It also reports the memory that such an index needs.
func BenchmarkReopenMillion(b *testing.B) {
	dir := b.TempDir()
	x := benchIndex(b, dir, 2*million)
	before := heapBytes()
	for i := range million / benchBatch {
		save(b, x, benchKeysAt(i))
	}
	liveMB := float64(heapBytes()-before) / 1e6
	if err := x.Close(); err != nil {
		b.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, journal.FileName))
	if err != nil {
		b.Fatal(err)
	}
	x = nil
	some := benchKeysAt(7)
	for b.Loop() {
		runtime.GC()
		start := time.Now()
		x, err := open(dir, Options{})
		if err != nil {
			b.Fatal(err)
		}
		found, err := x.Exists(context.Background(), benchSpace, some)
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "reopen-ms")
		if err != nil || !found[0] || !found[benchBatch-1] {
			b.Fatal(found[0], err)
		}
		x.Close()
	}
	b.ReportMetric(liveMB, "live-MB")
	b.ReportMetric(float64(info.Size())/1e6, "file-MB")
}

func benchKeysAt(i int) []string {
	batch := make([]string, benchBatch)
	for k := range batch {
		batch[k] = fmt.Sprintf("%064x", (i*benchBatch+k)*2654435761)
	}
	return batch
}

// reportCPU reports the processor time of an operation, which says more than the time
// that passes when a machine has other things to do.
func reportCPU(b *testing.B) func() {
	before := cpuNs(b)
	return func() { b.ReportMetric(float64(cpuNs(b)-before)/float64(b.N), "cpu-ns/op") }
}

func cpuNs(tb testing.TB) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkFollow is the replay of the records of one reservation and one confirmation of 512 keys, by a host that follows,
// with a million keys. It also reports the memory that such a host needs, and the time of a hash of its state.
func BenchmarkFollow(b *testing.B) {
	before := heapBytes()
	x := newIndex(nil, Options{})
	replay := func(rec *record) {
		rec.space = benchSpace
		if err := x.replayRecord(rec.encode()); err != nil {
			b.Fatal(err)
		}
	}
	replay(&record{kind: rankSet, numPages: million})
	save := func(i int) {
		keys, pages := benchKeysAt(i), make([]uint32, benchBatch)
		for k := range pages {
			pages[k] = uint32((i*benchBatch + k) % million)
		}
		replay(&record{kind: reserved, pages: pages, hashes: hashKeys(nil, keys)})
		replay(&record{kind: confirmed, pages: pages, keys: keys})
	}
	n := 0
	for ; n < million/benchBatch; n++ {
		save(n)
	}
	liveMB := float64(heapBytes()-before) / 1e6
	from := cpuNs(b)
	for b.Loop() {
		save(n)
		n++
	}
	b.ReportMetric(float64(cpuNs(b)-from)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N*benchBatch)/b.Elapsed().Seconds(), "keys/s")
	b.ReportMetric(liveMB, "live-MB")
	from = cpuNs(b)
	x.stateHash()
	b.ReportMetric(float64(cpuNs(b)-from)/1e6, "hash-cpu-ms")
}

// BenchmarkSaveWhenFull is a reservation and a confirmation of 512 new keys on a full rank that nobody reads, without
// and with pages that are kept free. The disk is not waited for.
func BenchmarkSaveWhenFull(b *testing.B) {
	for _, free := range []float64{0, 0.02} {
		b.Run(fmt.Sprint("free ", free), func(b *testing.B) {
			const pages = 128 * benchBatch
			o := Options{}
			o.Free = free
			x, err := openWith(b.TempDir(), journal.Options{NoSync: true}, o)
			if err != nil {
				b.Fatal(err)
			}
			defer x.Close()
			if _, err := x.Initialize(ctx, benchSpace, 0, pageservice.RankOptions{NumPages: pages}); err != nil {
				b.Fatal(err)
			}
			batches := benchKeys(4 * pages)
			for _, keys := range batches[:128] {
				save(b, x, keys)
			}
			defer reportCPU(b)()
			for i := 128; b.Loop(); i++ {
				save(b, x, batches[i%len(batches)])
			}
		})
	}
}
