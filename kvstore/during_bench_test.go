package kvstore

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkLoadDuringSave compares loads of a block while 3 GiB are being saved with loads
// of it alone: their p50 and p99, in milliseconds and as ratios. It is to be run on a disk.
func BenchmarkLoadDuringSave(b *testing.B) {
	const blockBytes, hot, saved = 2 << 20, 64, 1536
	for _, chain := range []string{"Segment", "Posix"} {
		b.Run(chain, func(b *testing.B) {
			dir := b.TempDir()
			s := openTest(b, chain, func(c *Config) {
				c.Layout = Layout{BlockBytes: blockBytes, ShardBytes: blockBytes}
				c.Segment = &SegmentOptions{Dir: filepath.Join(dir, "segments"), CapacityBytes: (saved + 4*hot) * blockBytes * 3 / 2, DirectIO: true}
				c.Posix = &PosixOptions{Dirs: []string{filepath.Join(dir, "posix")}, DirectIO: true}
				if chain == "Posix" {
					c.Segment = nil
				} else {
					c.Posix = nil
				}
			})
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
