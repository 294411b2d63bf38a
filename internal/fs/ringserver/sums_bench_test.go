package ringserver

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// summedFile is a file with checksums, or without any if sums is nil.
type summedFile struct {
	dirFile
	sums *integrity.File
}

func (f summedFile) Sums() *integrity.File { return f.sums }

// BenchmarkChecksums measures what checksums cost a worker that moves a MiB between a file in memory, or in the page
// cache of TMPDIR, and a client's buffer: "without" is the same without them. The last two rows are the bound: one pass of XXH3 over bytes
// that are in no cache, and over bytes that were just copied.
func BenchmarkChecksums(b *testing.B) {
	const size, blocks, buffers = 1 << 20, 256, 32
	mem := shm.OwnWindow(make([]byte, size*buffers))
	for i := range buffers {
		_ = mem.From(int64(i) * size).Fill(make([]byte, size))
	}
	window := func(i int) shm.Window { return mem.From(int64(i%buffers) * size).First(size) }
	at := func(i int) int64 { return int64(uint32(i)*2654435761%blocks) * size }
	for _, in := range []struct {
		name, dir string
		mode      blockio.Mode
	}{{"tmpfs", shm.Dir, blockio.Buffered}, {"pagecache", b.TempDir(), blockio.Auto}} {
		store, f := summed(b, in.dir)
		s := &Server{mover: blockio.Mover{Mode: in.mode, Kind: blockio.KindOf(in.dir)}}
		for _, kept := range []bool{false, true} {
			as := map[bool]string{false: "without", true: "with"}[kept]
			file := summedFile{dirFile: f}
			if kept {
				file.sums = store.Acquire(f.FD(), true)
			}
			borrowed := &borrowed{file: file, check: &integrity.Read{}, sums: &integrity.Write{}}
			write := func(b *testing.B, i int) {
				w := file.Sums().BeginWrite(borrowed.sums, f.FD(), at(i), size)
				n, _, err := s.write(borrowed, w, window(i), 0, at(i))
				if w.End(err == nil); n != size || err != nil {
					b.Fatal(n, err)
				}
			}
			for i := range blocks {
				write(b, i)
			}
			b.Run(fmt.Sprintf("%s/write/%s", in.name, as), func(b *testing.B) {
				b.SetBytes(size)
				for i := 0; b.Loop(); i++ {
					write(b, i)
				}
			})
			before := store.Counters().VerifiedBytes
			reads := 0
			b.Run(fmt.Sprintf("%s/read/%s", in.name, as), func(b *testing.B) {
				b.SetBytes(size)
				for i := 0; b.Loop(); i++ {
					if n, _, err := s.read(borrowed, window(i), 0, at(i)); n != size || err != nil {
						b.Fatal(n, err)
					}
					reads++
				}
			})
			want := int64(0)
			if kept {
				want = int64(reads) * size
			}
			if got := store.Counters().VerifiedBytes - before; got != want {
				b.Errorf("%s, %s checksums: %d of %d bytes were compared", in.name, as, got, int64(reads)*size)
			}
			store.Release(file.sums, f.FD())
		}
	}
	var sum uint64
	big := make([]byte, blocks*size)
	for i := range big {
		big[i] = byte(i)
	}
	b.Run("xxh3/cold", func(b *testing.B) {
		b.SetBytes(size)
		for i := 0; b.Loop(); i++ {
			for part := range int64(size / integrity.RangeBytes) {
				off := at(i) + part*integrity.RangeBytes
				sum += xxh3.Hash(big[off : off+integrity.RangeBytes])
			}
		}
	})
	b.Run("xxh3/cached", func(b *testing.B) {
		b.SetBytes(integrity.RangeBytes)
		for b.Loop() {
			sum += xxh3.Hash(big[:integrity.RangeBytes])
		}
	})
	_ = sum
}

// summed makes a file in dir, and a store of its checksums.
func summed(b *testing.B, dir string) (*integrity.Store, dirFile) {
	b.Helper()
	dir, err := os.MkdirTemp(dir, "kv3fs-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	store, err := integrity.Open(integrity.Options{Files: dir, Dir: filepath.Join(dir, "sums"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(store.Close)
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return store, dirFile{f: f}
}
