package blocksoak

import (
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/kvstore"
)

// Files are damaged at rest, at random, tens of thousands of times: bits are flipped,
// pieces zeroed, cut off or copied over others, whole files exchanged, blocks of another
// model put in, in blocks and in the logs of their checksums. Every load is right or a
// miss, and what was missed can be saved again.
func TestDamage(t *testing.T) {
	d := startDaemon(t)
	layout := kvstore.Layout{BlockBytes: 8 << 10, ShardBytes: 4 << 10}
	for name, o := range openings(t.TempDir(), d, layout, 4<<20) {
		t.Run(name, func(t *testing.T) {
			soak := &soak{opening: o, root: o.Config.StorageBackends}
			switch soak.root {
			case "":
				soak.root, soak.large = o.Config.PagesFile, true
			case d.mount:
				soak.root = d.data // the files behind the mount
			}
			if o.Config.SegmentBytes > 0 {
				soak.large = true
			}
			soak.run(t)
		})
	}
}

const (
	blocks   = 128
	perRound = 256
)

// soak is a chain that is damaged, and its files.
type soak struct {
	opening
	root  string
	large bool // many blocks in a file
	rng   *rand.Rand
}

func (s *soak) run(t *testing.T) {
	s.rng = rand.New(rand.NewPCG(seed.New(t), 1))
	if s.Config.PagesFile == "" { // a page file belongs to one model
		other := s.opening
		other.Config.Namespace.Model = "kv3fs/another"
		fill(t, other)
	}
	done, loaded, missed, corrupt, refused := 0, 0, 0, int64(0), 0
	for done < damages {
		fill(t, s.opening)
		files := dataFiles(t, s.root)
		for range perRound {
			s.damage(t, files)
			done++
		}
		store, err := s.open()
		if err != nil {
			// The part that identifies the directory or the file was damaged. Make it
			// anew.
			refused++
			if err := os.RemoveAll(s.root); err != nil {
				t.Fatal(err)
			}
			continue
		}
		for n := range blocks {
			switch v, err := load(t.Context(), store, n); {
			case v == wrong:
				t.Fatalf("block %d has wrong bytes after %d corruptions", n, done)
			case v == missing || err != nil:
				missed++
			default:
				loaded++
			}
		}
		corrupt += corruptBlocks(store.Stats())
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if loaded == 0 || missed == 0 || corrupt == 0 {
		t.Errorf("%d corruptions: %d blocks loaded, %d missed, %d found damaged: there is too much damage or too little", done, loaded, missed, corrupt)
	}
	t.Logf("%d corruptions, %d blocks loaded, %d missed, %d of them found damaged, %d times Open refused, no wrong byte", done, loaded, missed, corrupt, refused)
}

// fill saves all blocks, and checks that they are there then.
func fill(t *testing.T, o opening) {
	t.Helper()
	s, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < blocks; n += 8 {
		if err := save(t.Context(), s, n, n+1, n+2, n+3, n+4, n+5, n+6, n+7); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// corruptBlocks returns the count of the whole chain.
func corruptBlocks(s kvstore.Stats) int64 {
	n := s.CorruptBlocks
	if s.Next != nil {
		n += corruptBlocks(*s.Next)
	}
	return n
}

// damage damages one of the files at random.
func (s *soak) damage(t *testing.T, files []string) {
	t.Helper()
	rng := s.rng
	pick := func() string { return files[rng.IntN(len(files))] }
	name := pick()
	bits := false
	if logs := checksumLogs(files); len(logs) > 0 && rng.IntN(16) == 0 {
		// A few bits in a log, now and then: the rest would lose all blocks at once.
		name, bits = logs[rng.IntN(len(logs))], true
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	size, first, kinds := info.Size(), int64(0), 8
	if s.large && rng.IntN(2000) > 0 {
		// Damage to a whole file would leave little for the others to damage.
		first, kinds = min(4096, size), 6
	}
	if bits {
		kinds = 3
	}
	if size == first {
		return
	}
	within := func(n int64) int64 { return first + rng.Int64N(size-first-n+1) }
	piece := func() (off, n int64) {
		n = min(size-first, 1+rng.Int64N(6000))
		return within(n), n
	}
	switch rng.IntN(kinds) {
	case 0, 1, 2: // a bit
		off, one := within(1), make([]byte, 1)
		f.ReadAt(one, off)
		one[0] ^= 1 << rng.IntN(8)
		write(t, f, one, off)
	case 3: // zeros, as a lost write leaves
		off, n := piece()
		write(t, f, make([]byte, n), off)
	case 4: // a piece of itself elsewhere
		off, n := piece()
		copyWithin(t, f, off, within(n), n)
	case 5: // the same, aligned as blocks are
		n := min(size-first, 4096*(1+rng.Int64N(3)))
		copyWithin(t, f, within(n)&^4095, within(n)&^4095, n)
	case 6: // cut off
		if err := f.Truncate(rng.Int64N(size)); err != nil {
			t.Fatal(err)
		}
	case 7: // exchanged with another, or replaced by it
		other := pick()
		if other == name {
			return
		}
		if rng.IntN(2) == 0 {
			content, err := os.ReadFile(other)
			if err != nil {
				t.Fatal(err)
			}
			write(t, f, content[:min(int64(len(content)), size)], 0)
			return
		}
		for _, move := range [][2]string{{name, name + ".x"}, {other, name}, {name + ".x", other}} {
			if err := os.Rename(move[0], move[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// checksumLogs returns the files with checksums of blocks that are not in the same file.
func checksumLogs(files []string) []string {
	return slices.DeleteFunc(slices.Clone(files), func(name string) bool { return filepath.Ext(name) != ".log" })
}

// copyWithin copies n bytes of a file to another place in it, as far as they go.
func copyWithin(t *testing.T, f *os.File, from, to, n int64) {
	t.Helper()
	b := make([]byte, n)
	got, err := f.ReadAt(b, from)
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	write(t, f, b[:got], to)
}

func write(t *testing.T, f *os.File, b []byte, off int64) {
	t.Helper()
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

// dataFiles returns the files below root, without the daemon's own state.
func dataFiles(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && e.Name() == ".kv3fs":
			return filepath.SkipDir
		case e.Type().IsRegular():
			all = append(all, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}
