package index

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// past is a page index that engines have used, and what is true of it: which bytes each
// page has, and until when clients may read or write it.
type past struct {
	rng    *rand.Rand
	clock  time.Time
	o      Options
	spaces []*pastSpace
	files  [][]byte // as they were after each change, the newest last
}

type pastSpace struct {
	name  pageservice.Space
	keys  []string             // all that were ever written
	has   map[int64]string     // the key whose bytes a page has, or may have by now
	inUse map[int64]time.Time  // until when some client may read or write it
	open  []pageservice.Placed // reservations
}

const pastPages = 40

// newPast makes a past of random changes.
func newPast(t *testing.T, seed uint64) *past {
	p := &past{rng: rand.New(rand.NewPCG(seed, 1)), clock: time.Unix(1_800_000_000, 0)}
	p.o.Now = func() time.Time { return p.clock }
	p.o.Options = p.o.WithDefaults()
	p.o.Free = float64(seed%2) / 5
	dir := t.TempDir()
	x, err := openWith(dir, journal.Options{NoSync: true, SlackBytes: 2000}, p.o)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{pageservice.VLLM, "sglang/kv/0"} {
		s := &pastSpace{name: pageservice.Space{Set: set}, has: map[int64]string{}, inUse: map[int64]time.Time{}}
		p.spaces = append(p.spaces, s)
		if _, err := x.Initialize(ctx, s.name, 0, pageservice.RankOptions{NumPages: pastPages}); err != nil {
			t.Fatal(err)
		}
	}
	for range 60 + p.rng.IntN(200) {
		s := p.spaces[p.rng.IntN(len(p.spaces))]
		if err := p.change(x, s); err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(filepath.Join(dir, journal.FileName))
		if err != nil {
			t.Fatal(err)
		}
		p.files = append(p.files, now)
		if p.rng.IntN(4) == 0 {
			p.clock = p.clock.Add(time.Duration(p.rng.IntN(60)) * time.Second)
		}
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}

// change does what a client does.
func (p *past) change(x *Index, s *pastSpace) error {
	use := func(page int64, d time.Duration) {
		if until := p.clock.Add(d); until.After(s.inUse[page]) {
			s.inUse[page] = until
		}
	}
	switch p.rng.IntN(8) {
	case 0, 1, 2, 3: // save some keys, or only reserve pages for them
		var keys []string
		for range 1 + p.rng.IntN(6) {
			keys = append(keys, fmt.Sprintf("%s %d %0*d", s.name.Set, len(s.keys), 1+p.rng.IntN(200), 0))
			s.keys = append(s.keys, keys[len(keys)-1])
		}
		grants, err := x.Reserve(ctx, s.name, 0, keys, false)
		if err != nil {
			return err
		}
		for i, g := range grants {
			if g.Page == pageservice.None {
				continue
			}
			s.has[g.Page] = keys[i]
			use(g.Page, p.o.Reserve+p.o.Quarantine)
			s.open = append(s.open, pageservice.Placed{Key: keys[i], Page: g.Page})
		}
	case 4, 5:
		_, err := x.Confirm(ctx, s.name, 0, s.open, nil)
		s.open = nil
		return err
	case 6:
		if len(s.keys) == 0 {
			return nil
		}
		found, err := x.Locate(ctx, s.name, 0, s.keys[max(0, len(s.keys)-10):])
		for _, page := range found {
			use(page, p.o.Lease+p.o.Quarantine)
		}
		return err
	case 7:
		if len(s.keys) == 0 {
			return nil
		}
		key := s.keys[p.rng.IntN(len(s.keys))]
		found, err := x.Locate(ctx, s.name, 0, []string{key})
		if err == nil {
			_, err = x.Delete(ctx, s.name, []string{key})
			use(found[0], p.o.Lease+p.o.Quarantine)
		}
		return err
	}
	return nil
}

// outcomes counts what became of damaged indexes.
type outcomes struct{ refused, forgotten, whole int }

// open opens a file as the index, and checks what it says.
func (p *past) open(dir string, file []byte, alsoLater bool, count *outcomes) error {
	path := filepath.Join(dir, journal.FileName)
	// A new file: some file systems wait for the disk when one is overwritten.
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, file, 0o600)); err != nil {
		return err
	}
	disk := journal.Options{NoSync: true, LockTimeout: time.Minute}
	x, err := openWith(dir, disk, p.o)
	if errors.Is(err, pageservice.ErrCorrupt) {
		count.refused++
		return nil
	} else if err != nil {
		return err
	}
	found := 0
	err = p.check(x, &found)
	if found > 0 {
		count.whole++
	} else {
		count.forgotten++
	}
	if err := errors.Join(err, x.Close()); err != nil || !alsoLater {
		return err
	}
	// What the index has written since must be whole, and it may have forgotten nothing.
	if x, err = openWith(dir, disk, p.o); err != nil {
		return fmt.Errorf("open again: %w", err)
	}
	again := 0
	err = p.check(x, &again)
	if err == nil && again != found {
		err = fmt.Errorf("%d keys are found, and %d before", again, found)
	}
	return errors.Join(err, x.Close())
}

// check checks that no key is found where its bytes are not, and that no page is given
// out that somebody may be using.
func (p *past) check(x *Index, found *int) error {
	for _, s := range p.spaces {
		pages, err := x.Locate(ctx, s.name, 0, s.keys)
		if errors.Is(err, pageservice.ErrUnknownRank) {
			continue
		} else if err != nil {
			return err
		}
		for i, page := range pages {
			if page == pageservice.None {
				continue
			}
			*found++
			if s.has[page] != s.keys[i] {
				return fmt.Errorf("page %d of %q is said to have %q, and has %q", page, s.name.Set, s.keys[i], s.has[page])
			}
		}
		keys := make([]string, pastPages)
		for i := range keys {
			keys[i] = fmt.Sprint("new ", i)
		}
		grants, err := x.Reserve(ctx, s.name, 0, keys, false)
		if err != nil {
			return err
		}
		for _, g := range grants {
			if g.Page != pageservice.None && s.inUse[g.Page].After(p.clock) {
				return fmt.Errorf("page %d of %q is given out, and in use for another %v", g.Page, s.name.Set, s.inUse[g.Page].Sub(p.clock))
			}
		}
	}
	return x.Check()
}

// damages are what may happen to a file.
var damages = []struct {
	name string
	do   func(p *past, file []byte) []byte
}{
	{"a bit", func(p *past, file []byte) []byte {
		file[p.rng.IntN(len(file))] ^= 1 << p.rng.IntN(8)
		return file
	}},
	{"a bit of a meta page", func(p *past, file []byte) []byte {
		file[p.rng.IntN(2)*dbPage+p.rng.IntN(80)] ^= 1 << p.rng.IntN(8)
		return file
	}},
	{"a bit of the beginning of a page", func(p *past, file []byte) []byte {
		file[p.rng.IntN(len(file)/dbPage)*dbPage+p.rng.IntN(64)] ^= 1 << p.rng.IntN(8)
		return file
	}},
	{"a range of zeros", func(p *past, file []byte) []byte {
		clear(p.anyRange(file))
		return file
	}},
	{"a range of noise", func(p *past, file []byte) []byte {
		for r := p.anyRange(file); len(r) > 0; r = r[1:] {
			r[0] = byte(p.rng.Uint32())
		}
		return file
	}},
	{"a page over another", func(p *past, file []byte) []byte {
		n := len(file) / dbPage
		copy(file[p.rng.IntN(n)*dbPage:][:dbPage], file[p.rng.IntN(n)*dbPage:])
		return file
	}},
	{"an old page", func(p *past, file []byte) []byte {
		old := p.files[p.rng.IntN(len(p.files))]
		if p.rng.IntN(2) == 0 {
			old = p.files[len(p.files)-1-p.rng.IntN(min(4, len(p.files)))]
		}
		at := p.rng.IntN(min(len(old), len(file))/dbPage) * dbPage
		if p.rng.IntN(4) == 0 {
			at = p.rng.IntN(2) * dbPage
		}
		copy(file[at:], old[at:at+dbPage])
		return file
	}},
	{"a cut", func(p *past, file []byte) []byte {
		if n := p.rng.IntN(len(file)); p.rng.IntN(2) == 0 {
			return file[:n]
		} else {
			return file[:n/dbPage*dbPage]
		}
	}},
}

// dbPage is the size of a page of the file.
var dbPage = os.Getpagesize()

func (p *past) anyRange(file []byte) []byte {
	at := p.rng.IntN(len(file))
	if p.rng.IntN(2) == 0 {
		at -= at % 512
	}
	return file[at:][:min(len(file)-at, 1<<p.rng.IntN(14))]
}

// Whatever happens to the file of a page index, its start either refuses it, or finds no
// key where another's bytes are, and gives no page out that a client may be using.
// KV3FS_CORRUPTIONS=100000 tries as many damages.
func TestCorruptions(t *testing.T) {
	const atOnce = 1000
	pasts := 10
	if testing.Short() || invariants.Enabled {
		pasts = 1
	}
	if text := os.Getenv("KV3FS_CORRUPTIONS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("KV3FS_CORRUPTIONS: %v", err)
		}
		pasts = max(1, n/atOnce)
	}
	if dbPage > 1<<14 {
		t.Skip("the file is too small for pages of", dbPage)
	}
	all := map[string]*outcomes{}
	for seed := range uint64(pasts) {
		p := newPast(t, seed)
		newest := p.files[len(p.files)-1]
		var unharmed outcomes
		if err := p.open(t.TempDir(), newest, true, &unharmed); err != nil || unharmed.whole != 1 {
			t.Fatalf("seed %d, without damage: %+v, %v", seed, unharmed, err)
		}
		dir := t.TempDir()
		for n := range atOnce {
			kind := damages[n%len(damages)]
			if all[kind.name] == nil {
				all[kind.name] = &outcomes{}
			}
			file := newest
			for bytes.Equal(file, newest) { // what is not in use may have been empty before
				file = kind.do(p, slices.Clone(newest))
			}
			if err := p.open(dir, file, n%50 < len(damages), all[kind.name]); err != nil {
				t.Errorf("seed %d, damage %d, %s: %v", seed, n, kind.name, err)
			}
			if t.Failed() {
				return
			}
		}
	}
	for name, n := range all {
		t.Logf("%s: %d refused, %d started with all keys forgotten, %d with keys", name, n.refused, n.forgotten, n.whole)
	}
	if n := all["a bit"]; n.refused == 0 || n.whole == 0 {
		t.Errorf("%+v: is anything damaged?", *n)
	}
	if all["a bit of a meta page"].forgotten == 0 {
		t.Error("no damage of a meta page was noticed")
	}
}
