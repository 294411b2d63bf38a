package segment

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// damages lists what a disk, a program or a person may do to a closed store's segments.
var damages = []struct {
	name   string
	coarse bool // it destroys a whole segment
	do     func(t testing.TB, d *damaged)
}{
	{"a bit of a block is flipped", false, func(t testing.TB, d *damaged) {
		d.flip(t, d.one, d.geo.slotAt(d.one.slot)+d.rng.Int64N(d.geo.layout.BlockBytes))
	}},
	{"a bit of a head is flipped", false, func(t testing.TB, d *damaged) {
		d.flip(t, d.one, d.geo.headAt(d.one.slot)+d.rng.Int64N(blockhead.Size))
	}},
	{"a segment is cut short", true, func(t testing.TB, d *damaged) {
		if err := os.Truncate(d.one.file, d.geo.slotAt(d.one.slot)+d.rng.Int64N(d.geo.strideBytes)); err != nil {
			t.Fatal(err)
		}
	}},
	{"two records are swapped", false, func(t testing.TB, d *damaged) {
		a, b := d.read(t, d.one), d.read(t, d.other)
		d.write(t, d.one, b)
		d.write(t, d.other, a)
	}},
	{"a record is copied over another", false, func(t testing.TB, d *damaged) {
		d.write(t, d.one, d.read(t, d.other))
	}},
	{"a page is zero", false, func(t testing.TB, d *damaged) {
		raw := d.read(t, d.one)
		page := d.rng.IntN(len(raw) / pageBytes)
		clear(raw[page*pageBytes : (page+1)*pageBytes])
		d.write(t, d.one, raw)
	}},
	{"a record is another namespace's", false, func(t testing.TB, d *damaged) {
		d.rehead(t, func(h *blockhead.Head) { h.Namespace[3]++ })
	}},
	{"a record is of another generation", false, func(t testing.TB, d *damaged) {
		d.rehead(t, func(h *blockhead.Head) { h.Sequence += 1 + d.rng.Uint64N(3) })
	}},
	{"a header is damaged", true, func(t testing.TB, d *damaged) { d.flip(t, d.one, d.rng.Int64N(pageBytes)) }},
	{"an index is damaged, and a block", false, func(t testing.TB, d *damaged) {
		d.flip(t, d.one, d.geo.indexAt()+d.rng.Int64N(pageBytes))
		d.flip(t, d.one, d.geo.slotAt(d.one.slot)+d.rng.Int64N(d.geo.layout.BlockBytes))
	}},
	{"a sector is what was there long ago", false, func(t testing.TB, d *damaged) {
		raw := d.read(t, d.one)
		at := d.rng.IntN(len(raw)/512) * 512
		for i := range 512 {
			raw[at+i] = byte(d.rng.Uint32())
		}
		d.write(t, d.one, raw)
	}},
	{"a segment is a copy of another", true, func(t testing.TB, d *damaged) {
		raw, err := os.ReadFile(d.one.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range d.all {
			if b.file != d.one.file {
				if err := os.WriteFile(b.file, raw, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
		d.flip(t, d.one, d.geo.slotAt(d.one.slot))
	}},
	{"a segment is gone", true, func(t testing.TB, d *damaged) {
		if err := os.Remove(d.one.file); err != nil {
			t.Fatal(err)
		}
	}},
}

// damaged is a directory and what was chosen in it.
type damaged struct {
	geo        geometry
	all        []written
	rng        *rand.Rand
	one, other written
}

// damage does one of the damages to a directory.
func damage(t testing.TB, dir string, seed uint64) string {
	t.Helper()
	g, all := blocksIn(t, dir)
	d := &damaged{geo: g, all: all, rng: rand.New(rand.NewPCG(seed, 5))}
	kind := damages[seed%uint64(len(damages))]
	d.choose()
	kind.do(t, d)
	return kind.name
}

// choose chooses two blocks.
func (d *damaged) choose() {
	n := d.rng.IntN(len(d.all))
	d.one, d.other = d.all[n], d.all[(n+1+d.rng.IntN(len(d.all)-1))%len(d.all)]
}

func (d *damaged) read(t testing.TB, w written) []byte {
	t.Helper()
	f, err := os.Open(w.file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw := make([]byte, d.geo.strideBytes)
	if _, err := f.ReadAt(raw, d.geo.slotAt(w.slot)); err != nil {
		t.Fatal(err)
	}
	return raw
}

func (d *damaged) write(t testing.TB, w written, raw []byte) {
	t.Helper()
	put(t, w.file, d.geo.slotAt(w.slot), raw)
}

func (d *damaged) flip(t testing.TB, w written, at int64) {
	t.Helper()
	f, err := os.OpenFile(w.file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	b[0] ^= 1 << d.rng.IntN(8)
	if err == nil {
		_, err = f.WriteAt(b, at)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (d *damaged) rehead(t testing.TB, change func(*blockhead.Head)) {
	t.Helper()
	head := d.one.head
	change(&head)
	raw := make([]byte, blockhead.Size)
	head.Encode(raw)
	put(t, d.one.file, d.geo.headAt(d.one.slot), raw)
}

func put(t testing.TB, file string, at int64, raw []byte) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(raw, at); err != nil {
		t.Fatal(err)
	}
}

// Whatever is damaged, what is loaded is right; what was found damaged is not found
// again, not even after a restart; and everything can be saved anew.
func TestDamageIsAMissForGood(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	keys := keysOf(0, 11)
	for seed := range uint64(rounds * len(damages)) {
		o := options(t.TempDir(), small, 5, 4)
		s := open(t, o)
		save(t, s, keys...)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		what := damage(t, o.Dir, seed)
		s = open(t, o)
		before := found(t, s, keys...)
		there := load(t, s, keys...)
		gone := 0
		for i := range keys {
			if before[i] && !there[i] {
				gone++
			}
			if there[i] && !before[i] {
				t.Fatalf("seed %d, %s: block %d is loaded and not found", seed, what, i)
			}
		}
		stats := s.Stats()
		if stats.CorruptBlocks != int64(gone) || stats.QuarantinedBlocks != int64(gone) {
			t.Fatalf("seed %d, %s: %d blocks are damaged, counted as %d and %d in quarantine", seed, what, gone, stats.CorruptBlocks, stats.QuarantinedBlocks)
		}
		s = reopen(t, s, o)
		for i, f := range found(t, s, keys...) {
			if f != there[i] {
				t.Fatalf("seed %d, %s: block %d: loaded %t, found after a restart %t", seed, what, i, there[i], f)
			}
		}
		save(t, s, keys...)
		s = reopen(t, s, o)
		loads(t, s, keys...)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A hundred thousand corruptions, a hundred at a time, load not one wrong byte. The race
// detector runs some rounds; scripts/test runs all without it.
func TestCorruptions(t *testing.T) {
	const atOnce = 100
	rounds := 1000
	if testing.Short() || raceEnabled {
		rounds = 10
	}
	keys := keysOf(0, 200)
	o := options(t.TempDir(), small, 9, 32)
	rng := rand.New(rand.NewPCG(9, 9))
	lost := 0
	for round := range rounds {
		s := open(t, o)
		for i, there := range load(t, s, keys...) {
			if !there {
				lost++
				save(t, s, keys[i])
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		g, all := blocksIn(t, o.Dir)
		d := &damaged{geo: g, all: all, rng: rng}
		for n := range atOnce {
			d.choose()
			// Those that destroy a whole segment come now and then, and last: they leave
			// nothing for others to damage.
			kind := damages[rng.IntN(len(damages))]
			if !kind.coarse || n == atOnce-1 && round%4 == 0 {
				kind.do(t, d)
			} else {
				damages[0].do(t, d)
			}
		}
	}
	if lost < rounds*atOnce/20 {
		t.Errorf("%d corruptions made %d blocks disappear: did they damage any?", rounds*atOnce, lost)
	}
}

// A block is quarantined in a segment without an index yet, in the part of one that the
// last process wrote, and in a sealed one. After a kill the next process finds none of
// them.
func TestQuarantineOutlivesAKill(t *testing.T) {
	o := options(t.TempDir(), small, 6, 2*indexSlots)
	s := open(t, o)
	save(t, s, keysOf(0, indexSlots+20)...)
	s = reopen(t, s, o)
	save(t, s, keysOf(indexSlots+20, 2*indexSlots)...)
	until(t, "the first segment is sealed", func() bool { return sealed(s) == 1 })

	for _, n := range []int{3, indexSlots + 5, 2*indexSlots - 3, 2*indexSlots + 10} {
		key := keyOf(n)
		ruin(t, s, key)
		task, err := s.Load(context.Background(), shardsOf(small, key))
		if err != nil {
			t.Fatal(err)
		}
		if err := task.Wait(context.Background()); !errors.Is(err, kv.ErrCorrupt) {
			t.Fatalf("block %d: %v", n, err)
		}
		killed := o
		killed.Dir = snapshot(t, o.Dir)
		next := open(t, killed)
		if found(t, next, key)[0] {
			t.Errorf("block %d is found again", n)
		}
		if f := found(t, next, keysOf(0, 3)...); !f[0] || !f[1] {
			t.Errorf("block %d: others are gone", n)
		}
	}
}

// sealed is how many segments have an index on the disk.
func sealed(s *Store) (n int) {
	for _, seg := range s.segments {
		seg.disk.Lock()
		if seg.indexed == s.geo.indexPages() {
			n++
		}
		seg.disk.Unlock()
	}
	return n
}

// ruin changes a byte of a block of an open store, on the disk.
func ruin(t testing.TB, s *Store, key kv.Key) {
	t.Helper()
	s.mu.RLock()
	at, ok := s.table.find(key)
	s.mu.RUnlock()
	if !ok {
		t.Fatalf("block %s is not there", key)
	}
	seg := s.segmentOf(at)
	put(t, seg.file.Name(), s.geo.slotAt(int(at-seg.first))+100, []byte{0xee, 0xee, 0xee})
}

// snapshot copies a directory as it is, which is what a kill leaves when nothing is
// being written.
func snapshot(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, e.Name()), raw, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// Without checksums identities are still compared.
func TestChecksumsOff(t *testing.T) {
	o := options(t.TempDir(), small, 5, 4)
	o.Checksums = kv.ChecksumsOff
	s := open(t, o)
	save(t, s, keysOf(0, 4)...)
	ruin(t, s, keyOf(0))
	task, err := s.Load(context.Background(), shardsOf(small, keyOf(0)))
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(context.Background()); err != nil {
		t.Errorf("a checksum was compared: %v", err)
	}
	at, _ := s.table.find(keyOf(1))
	put(t, s.segments[0].file.Name(), s.geo.headAt(int(at)), make([]byte, 100))
	if load(t, s, keyOf(1))[0] {
		t.Error("a block without a head was loaded")
	}
}
