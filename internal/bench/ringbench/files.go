package ringbench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

// files are what the bench reads and writes: for each ring one file with known content
// and one that is overwritten.
type files struct {
	data, mount string // the same directory, below the data directory and below the mount
	sizeBytes   int64
	rings       int
}

// makeFiles writes the files through the data directory and checks that the mount shows
// them.
func makeFiles(ctx context.Context, dataDir, mountDir string, rings int, sizeBytes int64) (_ *files, err error) {
	name := fmt.Sprintf("kv3fs-bench-%d", os.Getpid())
	f := &files{filepath.Join(dataDir, name), filepath.Join(mountDir, name), sizeBytes, rings}
	var st unix.Statfs_t
	if err := unix.Statfs(dataDir, &st); err != nil {
		return nil, fmt.Errorf("bench: data directory %s: %w", dataDir, err)
	}
	if free, need := int64(st.Bavail)*st.Bsize, 2*int64(rings)*sizeBytes; free < need+need/10 {
		return nil, fmt.Errorf("bench: the files take %s and %s has %s free; choose a smaller --file-bytes or another place", measure.SizeText(need), dataDir, measure.SizeText(free))
	}
	if err := os.Mkdir(f.mount, 0o755); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.remove() // err is the first error
		}
	}()
	if _, err := os.Stat(f.data); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("bench: %s does not show up as %s: --data must be the data directory of the daemon at --mount", f.mount, f.data)
	}
	for ring := range rings {
		for _, write := range []bool{false, true} {
			if err := f.fill(ctx, ring, write); err != nil {
				return nil, fmt.Errorf("bench: %w", err)
			}
		}
	}
	return f, nil
}

func (f *files) remove() error { return os.RemoveAll(f.mount) }

// path returns the path of a file below dir, which is f.data or f.mount.
func (f *files) path(dir string, ring int, write bool) string {
	if write {
		return fmt.Sprintf("%s/write-%d", dir, ring)
	}
	return fmt.Sprintf("%s/read-%d", dir, ring)
}

// contentOf returns the content of a chunk of a file that is read.
func contentOf(ring int, chunk int64) workload.Pattern {
	return workload.PatternOf(uint64(ring), uint64(chunk))
}

// fill writes a file from start to end, so that no run meets a hole.
func (f *files) fill(ctx context.Context, ring int, write bool) (err error) {
	out, err := os.OpenFile(f.path(f.data, ring, write), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buf := make([]byte, 1<<20)
	for off := int64(0); off < f.sizeBytes; off += int64(len(buf)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buf[:min(int64(len(buf)), f.sizeBytes-off)]
		for at := 0; at < len(part); at += chunkBytes {
			contentOf(ring, (off+int64(at))/chunkBytes).Fill(part[at:min(at+chunkBytes, len(part))])
		}
		if _, err := out.WriteAt(part, off); err != nil {
			return err
		}
	}
	// Otherwise writeback would disturb the first runs.
	return out.Sync()
}

// checkRead checks what was read from a file at off.
func checkRead(got []byte, ring int, off int64) error {
	for at := 0; at < len(got); at += chunkBytes {
		wrong, first := contentOf(ring, (off+int64(at))/chunkBytes).Check(got[at:min(at+chunkBytes, len(got))])
		if wrong != 0 {
			return fmt.Errorf("wrong bytes read from file %d: the first at offset %d", ring, off+int64(at+first))
		}
	}
	return nil
}

// checkWritten checks what was written to a file at off. It reads it through the data
// directory, by none of the ways that are measured.
func (f *files) checkWritten(want []byte, ring int, off int64) error {
	in, err := os.Open(f.path(f.data, ring, true))
	if err != nil {
		return err
	}
	defer in.Close()
	got := make([]byte, len(want))
	if _, err := in.ReadAt(got, off); err != nil {
		return err
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("wrong bytes in file %d after writing: the first at offset %d", ring, off+int64(i))
		}
	}
	return nil
}

// dropCaches removes the files from the page cache, for runs that bypass it.
func (f *files) dropCaches() error {
	for ring := range f.rings {
		for _, write := range []bool{false, true} {
			in, err := os.Open(f.path(f.data, ring, write))
			if err != nil {
				return err
			}
			err = unix.Fadvise(int(in.Fd()), 0, 0, unix.FADV_DONTNEED)
			in.Close()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// stripe is the part of a file that belongs to one request in flight: the blocks whose
// number is first modulo stride. So no two requests in flight overlap, whichever
// contender issues them, and what a stripe wrote last can be checked.
type stripe struct {
	ring   int
	first  int64
	stride int64
	blocks int64 // of the stripe
	size   int64
	random uint64
	last   int64 // offset of the latest request
}

func newStripe(fileBytes, size int64, ring, first, stride int) stripe {
	blocks := fileBytes / size
	return stripe{
		ring: ring, first: int64(first), stride: int64(stride), size: size,
		blocks: (blocks - int64(first) + int64(stride) - 1) / int64(stride),
		random: uint64(ring)<<32 + uint64(first) + 1,
	}
}

// next returns the random offset of the stripe's next request.
func (l *stripe) next() int64 {
	l.random ^= l.random << 13
	l.random ^= l.random >> 7
	l.random ^= l.random << 17
	l.last = (l.first + l.stride*int64((l.random>>1)%uint64(l.blocks))) * l.size
	return l.last
}

// at returns the offset of request n of many that share the stripe. It is as random as
// that of next: consecutive requests must not be neighbours on the disk.
func (l *stripe) at(n uint64) int64 {
	n *= 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9 // splitmix64
	n = (n ^ n>>27) * 0x94d049bb133111eb
	n ^= n >> 31
	return (l.first + l.stride*int64((n>>1)%uint64(l.blocks))) * l.size
}

// readyBuffer prepares a stripe's buffer for a run and touches all its pages. Bytes to be
// written differ from those of every other run and stripe; a buffer to read into holds
// nothing that could be mistaken for the file's content.
func readyBuffer(buf []byte, c testCase, contender string, ring, stripe, round int) {
	if !c.write {
		clear(buf)
		return
	}
	workload.PatternOf(uint64(contender[0]), uint64(ring), uint64(stripe), uint64(round)).Fill(buf)
}
