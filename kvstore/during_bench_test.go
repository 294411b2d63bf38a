package kvstore

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
// No store and no cache keeps all blocks that are loaded open or in memory. plain is what the
// disk and the machine do without any store: pread beside two threads that write, and beside
// one more that appends to a log and flushes it, as the page service does.
func BenchmarkLoadDuringSave(b *testing.B) {
	const blockBytes, hot, saved = benchBlockBytes, 128, 1536
	mem, err := unix.Mmap(-1, 0, (hot+1)*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Munmap(mem)
	buf := func(i int) []byte { return mem[i*blockBytes:][:blockBytes] }
	for i := range hot {
		mark(buf(i), i)
	}
	for _, flushed := range []bool{false, true} {
		name := "plain"
		if flushed {
			name = "plain-flushed"
		}
		b.Run(name, func(b *testing.B) {
			p := plainFiles{dir: daemontest.NewDir(b), buf: func(i int) []byte { return buf(i % hot) }, flushed: flushed}
			if err := p.write(0, hot); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				loadDuring(b, buf(hot), hot,
					func(block int) error { return p.move(block, unix.O_RDONLY, unix.Pread, buf(hot)) },
					func() error { return p.write(hot, hot+saved) })
			}
		})
	}
	for _, chain := range []string{"Segment", "Posix", "Ds3fs", "Pages", "Cache|Segment", "Cache|Posix"} {
		b.Run(strings.ReplaceAll(chain, "|", "-"), func(b *testing.B) {
			s := openOnDisk(b, chain, saved+4*hot)
			save := func(keys []Key) error {
				var all []Shard
				for i, key := range keys {
					all = append(all, Shard{Key: key, Buf: buf(i % hot)})
				}
				task, err := s.Save(b.Context(), all)
				if err != nil {
					return err
				}
				return task.Wait(b.Context())
			}
			keys := testKeys(hot + saved)
			if err := save(keys[:hot]); err != nil {
				b.Fatal(err)
			}
			load := func(block int) error {
				task, err := s.Load(b.Context(), []Shard{{Key: keys[block], Buf: buf(hot)}})
				if err != nil {
					return err
				}
				return task.Wait(b.Context())
			}
			for b.Loop() {
				loadDuring(b, buf(hot), hot, load, func() error { return save(keys[hot:]) })
				if err := s.Delete(b.Context(), keys[hot:]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// plainFiles moves blocks as files by system calls, without a store.
type plainFiles struct {
	dir     string
	buf     func(i int) []byte
	flushed bool
}

func (p *plainFiles) move(i int, flags int, call func(fd int, b []byte, off int64) (int, error), b []byte) error {
	fd, err := unix.Open(filepath.Join(p.dir, strconv.Itoa(i)), flags|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	_, err = call(fd, b, 0)
	return errors.Join(err, unix.Close(fd))
}

// write writes files from..to-1 with two threads. If p.flushed is set, a log is appended to and
// flushed at the beginning, at the end and every two seconds.
func (p *plainFiles) write(from, to int) error {
	var next atomic.Int64
	failed := make([]error, 3)
	var writers, logger sync.WaitGroup
	for t := range 2 {
		writers.Go(func() {
			for failed[t] == nil {
				i := from + int(next.Add(1)) - 1
				if i >= to {
					return
				}
				failed[t] = p.move(i, unix.O_WRONLY|unix.O_CREAT, unix.Pwrite, p.buf(i))
			}
		})
	}
	done := make(chan struct{})
	if p.flushed {
		logger.Go(func() { failed[2] = p.flush(done) })
	}
	writers.Wait()
	close(done)
	logger.Wait()
	return errors.Join(failed...)
}

func (p *plainFiles) flush(done <-chan struct{}) error {
	f, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for last := false; ; {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
		if last {
			return nil
		}
		select {
		case <-done:
			last = true
		case <-time.After(2 * time.Second):
		}
	}
}

// mark writes the number of a block to each of its pages, and marked looks for it.
func mark(block []byte, number int) {
	for at := 0; at < len(block); at += 4096 {
		binary.LittleEndian.PutUint64(block[at:], uint64(number))
	}
}

func marked(block []byte, number int) bool {
	for at := 0; at < len(block); at += 4096 {
		if binary.LittleEndian.Uint64(block[at:]) != uint64(number) {
			return false
		}
	}
	return true
}

// loadDuring reports how long 300 loads take alone, and loads during a save. load loads one of
// so many marked blocks into dst.
func loadDuring(b *testing.B, dst []byte, blocks int, load func(block int) error, save func() error) {
	n := 0
	timed := func() time.Duration {
		block := n * 37 % blocks
		n++
		mark(dst, -1)
		begun := time.Now()
		if err := load(block); err != nil {
			b.Fatal(err)
		}
		took := time.Since(begun)
		if !marked(dst, block) {
			b.Fatalf("block %d: wrong bytes", block)
		}
		time.Sleep(2 * time.Millisecond)
		return took
	}
	quantiles := func(all []time.Duration) (p50, p99 float64) {
		slices.Sort(all)
		at := func(q float64) float64 { return 1e3 * all[int(q*float64(len(all)))].Seconds() }
		return at(0.5), at(0.99)
	}
	var alone, during []time.Duration
	for range 300 {
		alone = append(alone, timed())
	}
	done := make(chan error, 1)
	go func() { done <- save() }()
	for len(done) == 0 {
		during = append(during, timed())
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	a50, a99 := quantiles(alone)
	d50, d99 := quantiles(during)
	for unit, value := range map[string]float64{"p50-alone-ms": a50, "p50-ms": d50, "p50-ratio": d50 / a50, "p99-alone-ms": a99, "p99-ms": d99, "p99-ratio": d99 / a99} {
		b.ReportMetric(value, unit)
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
