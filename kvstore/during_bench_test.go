package kvstore

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

const benchBlockBytes = 2 << 20

// openOnDisk opens a chain for so many blocks of 2 MiB, which bypasses the page cache. Stores
// that need a daemon have one, on the same disk.
func openOnDisk(b *testing.B, chain string, blocks int64) *Store {
	dir := daemontest.NewDir(b)
	return openTest(b, chain, func(c *Config) {
		c.Layout = Layout{BlockBytes: benchBlockBytes, ShardBytes: benchBlockBytes}
		c.Posix, c.Segment = nil, nil
		if c.Cache != nil {
			c.Cache.CapacityBytes = 32 * benchBlockBytes
		}
		capacity := blocks * benchBlockBytes * 3 / 2
		switch chain[strings.LastIndex(chain, "|")+1:] {
		case "Segment":
			c.Segment = &SegmentOptions{Dir: filepath.Join(dir, "segments"), CapacityBytes: capacity, DirectIO: true}
		case "Posix":
			c.Posix = &PosixOptions{Dirs: []string{filepath.Join(dir, "posix")}, DirectIO: true}
		case "Ds3fs":
			c.Ds3fs = &Ds3fsOptions{Mount: daemontest.Serve(b, "--io", "direct").Mount}
		case "Pages":
			socket := filepath.Join(dir, "pages.sock")
			daemontest.Serve(b, "--pages-listen", "unix:"+socket)
			c.Pages = &PagesOptions{URL: "unix:" + socket, File: filepath.Join(dir, "pages"), CapacityBytes: capacity, DirectIO: true}
		}
	})
}

// BenchmarkLoadDuringSave compares loads of a block while 3 GiB are being saved with loads
// of it alone: their p50 and p99, in milliseconds and as ratios. It is to be run on a disk.
// No store and no cache keeps all blocks that are loaded open or in memory.
func BenchmarkLoadDuringSave(b *testing.B) {
	const blockBytes, hot, saved = benchBlockBytes, 128, 1536
	for _, chain := range []string{"Segment", "Posix", "Ds3fs", "Pages", "Cache|Segment", "Cache|Posix"} {
		b.Run(strings.ReplaceAll(chain, "|", "-"), func(b *testing.B) {
			s := openOnDisk(b, chain, saved+4*hot)
			mem, err := unix.Mmap(-1, 0, (hot+1)*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				b.Fatal(err)
			}
			defer unix.Munmap(mem)
			buf := func(i int) []byte { return mem[i*blockBytes:][:blockBytes] }
			shards := func(keys []Key) (all []Shard) {
				for i, key := range keys {
					all = append(all, Shard{Key: key, Buf: buf(i % hot)})
				}
				return all
			}
			keys := testKeys(hot + saved)
			task, err := s.Save(b.Context(), shards(keys[:hot]))
			if err == nil {
				err = task.Wait(b.Context())
			}
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			load := func() time.Duration {
				begun := time.Now()
				task, err := s.Load(b.Context(), []Shard{{Key: keys[n*37%hot], Buf: buf(hot)}})
				if err == nil {
					err = task.Wait(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
				took := time.Since(begun)
				n++
				time.Sleep(2 * time.Millisecond)
				return took
			}
			quantiles := func(all []time.Duration) (p50, p99 float64) {
				slices.Sort(all)
				at := func(q float64) float64 { return 1e3 * all[int(q*float64(len(all)))].Seconds() }
				return at(0.5), at(0.99)
			}
			for b.Loop() {
				var alone, during []time.Duration
				for range 300 {
					alone = append(alone, load())
				}
				done := make(chan error, 1)
				go func() {
					task, err := s.Save(b.Context(), shards(keys[hot:]))
					if err == nil {
						err = task.Wait(b.Context())
					}
					done <- err
				}()
				for len(done) == 0 {
					during = append(during, load())
				}
				if err := <-done; err != nil {
					b.Fatal(err)
				}
				a50, a99 := quantiles(alone)
				d50, d99 := quantiles(during)
				for unit, value := range map[string]float64{"p50-alone-ms": a50, "p50-ms": d50, "p50-ratio": d50 / a50, "p99-alone-ms": a99, "p99-ms": d99, "p99-ratio": d99 / a99} {
					b.ReportMetric(value, unit)
				}
				if err := s.Delete(b.Context(), keys[hot:]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLargeSave measures one call of Save with 3 GiB that no load disturbs. It is to be
// run on a disk.
func BenchmarkLargeSave(b *testing.B) {
	const blockBytes, buffers, saved = benchBlockBytes, 64, 1536
	for _, chain := range []string{"Segment", "Posix"} {
		b.Run(chain, func(b *testing.B) {
			s := openOnDisk(b, chain, saved)
			mem, err := unix.Mmap(-1, 0, buffers*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				b.Fatal(err)
			}
			defer unix.Munmap(mem)
			keys := testKeys(saved)
			var shards []Shard
			for i, key := range keys {
				shards = append(shards, Shard{Key: key, Buf: mem[i%buffers*blockBytes:][:blockBytes]})
			}
			b.SetBytes(saved * blockBytes)
			for b.Loop() {
				task, err := s.Save(b.Context(), shards)
				if err == nil {
					err = task.Wait(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := s.Delete(b.Context(), keys); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
