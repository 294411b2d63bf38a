package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// wholeFile writes a log of so many records in a directory of its own, and returns its
// file before the last record was written, and after.
func wholeFile(t *testing.T, records int) (before, after []byte, recs []string) {
	t.Helper()
	dir := t.TempDir()
	j, _ := open(t, dir, Options{NoSync: true})
	read := func() []byte {
		b, err := os.ReadFile(filepath.Join(dir, FileName))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for i := range records {
		if i == records-1 {
			before = read()
		}
		recs = append(recs, strings.Repeat(string(rune('a'+i%26)), 1+i*i%700))
		if err := writeAll(j, recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return before, read(), recs
}

// startOn starts the journal on a file in dir. It returns the records, and whether some
// may be missing.
func startOn(t *testing.T, dir string, file []byte) (recs []string, missing bool, err error) {
	t.Helper()
	path := filepath.Join(dir, FileName)
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, file, 0o600)); err != nil {
		t.Fatal(err)
	}
	owner := keepAll
	owner.Missing = func(string) { missing = true }
	j, recs, err := start(dir, Options{NoSync: true}, owner)
	if err != nil {
		return nil, missing, err
	}
	return recs, missing, j.Close()
}

// newestMeta returns the meta page that counts.
func newestMeta(t *testing.T, file []byte) (at int, m meta) {
	t.Helper()
	pageBytes := os.Getpagesize()
	first, _ := parseMeta(file, 0)
	second, _ := parseMeta(file[pageBytes:], 1)
	if first.txid > second.txid {
		return 0, first
	}
	return pageBytes, second
}

// Whichever byte of the file is wrong, Start either reads what was written, or refuses the
// file, or says that the last record may be missing.
func TestDamageOfAnyByte(t *testing.T) {
	dir := t.TempDir()
	_, file, want := wholeFile(t, 60)
	refused := 0
	for at := 0; at < len(file); at += 211 {
		damaged := slices.Clone(file)
		damaged[at] ^= 0x55
		recs, missing, err := startOn(t, dir, damaged)
		switch {
		case errors.Is(err, pageservice.ErrCorrupt):
			refused++
		case err != nil:
			t.Errorf("byte %d: %v", at, err)
		case !slices.Equal(recs, want) && !(missing && slices.Equal(recs, want[:len(want)-1])):
			t.Errorf("byte %d: %d records of %d, and no error", at, len(recs), len(want))
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
}

// Without its root page, a log is not an empty one.
func TestDamageOfTheRootPage(t *testing.T) {
	dir := t.TempDir()
	for _, records := range []int{2, 300} {
		_, file, want := wholeFile(t, records)
		_, m := newestMeta(t, file)
		root := int(m.root) * os.Getpagesize()
		refused := 0
		for bit := range 112 * 8 {
			if (testing.Short() || invariants.Enabled) && bit%7 > 0 {
				continue
			}
			damaged := slices.Clone(file)
			damaged[root+bit/8] ^= 1 << (bit % 8)
			recs, missing, err := startOn(t, dir, damaged)
			switch {
			case errors.Is(err, pageservice.ErrCorrupt):
				refused++
			case err != nil || missing || !slices.Equal(recs, want):
				t.Errorf("%d records, bit %d: %d are left; %t, %v", records, bit, len(recs), missing, err)
			}
		}
		if refused == 0 {
			t.Error("nothing was refused")
		}
	}
}

// The root page of a short log has all of it, so an old copy of that page is a whole log.
func TestDamageByAnOldRootPage(t *testing.T) {
	dir := t.TempDir()
	var files [][]byte
	for records := 2; records < 12; records++ {
		_, file, _ := wholeFile(t, records)
		files = append(files, file)
	}
	newest := files[len(files)-1]
	_, m := newestMeta(t, newest)
	at, older := int(m.root)*os.Getpagesize(), 0
	for _, file := range files[:len(files)-1] {
		if file[at+8] != leafPage || !bytes.Contains(file[at:at+headerBytes+elementBytes+len(bucket)], []byte(bucket)) {
			continue
		}
		older++
		damaged := slices.Clone(newest)
		copy(damaged[at:], file[at:at+os.Getpagesize()])
		if recs, missing, err := startOn(t, dir, damaged); !errors.Is(err, pageservice.ErrCorrupt) {
			t.Errorf("%d records of %d; %t, %v", len(recs), len(files)+1, missing, err)
		}
	}
	if older == 0 {
		t.Error("the page was never the root page before")
	}
}

// One of two meta pages is always left. But who uses it must know that the last record
// may be missing.
func TestDamageOfAMetaPage(t *testing.T) {
	dir := t.TempDir()
	before, file, want := wholeFile(t, 20)
	for _, page := range []int{0, os.Getpagesize()} {
		for bit := range (metaAt + metaBytes) * 8 {
			if bit/8 >= 10 && bit/8 < metaAt {
				continue // of the header, where bbolt writes zeros and reads nothing
			}
			damaged := slices.Clone(file)
			damaged[page+bit/8] ^= 1 << (bit % 8)
			recs, missing, err := startOn(t, dir, damaged)
			if err != nil || !missing || len(recs) < len(want)-1 {
				t.Errorf("meta page at %d, bit %d: %d records of %d; %t, %v", page, bit, len(recs), len(want), missing, err)
			}
		}
	}
	// The old copy of a meta page is as valid as the new one.
	at, _ := newestMeta(t, file)
	copy(file[at:], before[at:at+os.Getpagesize()])
	if recs, missing, err := startOn(t, dir, file); err != nil || !missing || len(recs) != len(want)-1 {
		t.Errorf("an old copy of the newest meta page: %d records of %d; %t, %v", len(recs), len(want), missing, err)
	}
}

// No page makes the journal go round in circles, or allocate more than the file has.
func TestDamageOfPointersAndCounts(t *testing.T) {
	dir := t.TempDir()
	_, file, _ := wholeFile(t, 300)
	_, m := newestMeta(t, file)
	order, pageBytes := binary.NativeEndian, uint64(os.Getpagesize())
	root := m.root * pageBytes
	top := order.Uint64(file[root+headerBytes+elementBytes+uint64(len(bucket)):]) // the bucket's own root
	if kind := order.Uint16(file[top*pageBytes+8:]); kind != branchPage {
		t.Fatalf("page %d is of kind %#x", top, kind)
	}
	child := top*pageBytes + headerBytes + 8
	leaf := order.Uint64(file[child:]) * pageBytes
	list := m.freelist * pageBytes
	for name, do := range map[string]func(b []byte){
		"a page is its own child":    func(b []byte) { order.PutUint64(b[child:], top) },
		"a page is its root's child": func(b []byte) { order.PutUint64(b[child:], m.root) },
		"a child is beyond the file": func(b []byte) { order.PutUint64(b[child:], 1<<40) },
		"a child is a meta page":     func(b []byte) { order.PutUint64(b[child:], 1) },
		"two children are one":       func(b []byte) { copy(b[child+16:], b[child:child+8]) },
		"a branch of 65535 elements": func(b []byte) { order.PutUint16(b[top*pageBytes+10:], math.MaxUint16) },
		"a branch without elements":  func(b []byte) { order.PutUint16(b[top*pageBytes+10:], 0) },
		"a leaf of 65535 elements":   func(b []byte) { order.PutUint16(b[leaf+10:], math.MaxUint16) },
		"a leaf of 16 TiB":           func(b []byte) { order.PutUint32(b[leaf+12:], math.MaxUint32) },
		"a leaf that has the rest":   func(b []byte) { order.PutUint32(b[leaf+12:], uint32(m.numPages-leaf/pageBytes-1)) },
		"a leaf is a branch":         func(b []byte) { order.PutUint16(b[leaf+8:], branchPage) },
		"a key outside its page":     func(b []byte) { order.PutUint32(b[leaf+headerBytes+4:], math.MaxUint32) },
		"a value of 4 GiB":           func(b []byte) { order.PutUint32(b[leaf+headerBytes+12:], math.MaxUint32) },
		"a free page is in use":      func(b []byte) { order.PutUint64(b[list+headerBytes:], top) },
		"65534 free pages":           func(b []byte) { order.PutUint16(b[list+10:], math.MaxUint16-1) },
		"very many free pages": func(b []byte) {
			order.PutUint16(b[list+10:], math.MaxUint16)
			order.PutUint64(b[list+headerBytes:], 1<<60)
		},
		"the list of free pages is long": func(b []byte) { order.PutUint32(b[list+12:], math.MaxUint32) },
	} {
		t.Run(name, func(t *testing.T) {
			damaged := slices.Clone(file)
			do(damaged)
			var m0, m1 runtime.MemStats
			runtime.ReadMemStats(&m0)
			recs, _, err := startOn(t, dir, damaged)
			runtime.ReadMemStats(&m1)
			if !errors.Is(err, pageservice.ErrCorrupt) || !strings.Contains(err.Error(), FileName) || !strings.Contains(err.Error(), "move it away") {
				t.Errorf("%d records, %v", len(recs), err)
			}
			if got := m1.TotalAlloc - m0.TotalAlloc; got > 16<<20 {
				t.Errorf("%d bytes allocated for a file of %d", got, len(file))
			}
		})
	}
}

// A meta page whose checksum is right may still say anything. It ends in an error, or in the
// use of the other one.
func TestCraftedMetaPages(t *testing.T) {
	dir := t.TempDir()
	_, file, want := wholeFile(t, 300)
	newest, m := newestMeta(t, file)
	order, pageBytes := binary.NativeEndian, os.Getpagesize()
	// In the bucket's own header, behind its name, is the seal of the records.
	seal := int(m.root)*pageBytes + headerBytes + elementBytes + len(bucket) + 8
	reseal := func(b []byte, txid uint64) {
		var j Journal
		w, err := newWalker(tempFile(t, file), m, int64(len(file)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.records(func(seq uint64, value []byte) error { j.add(seq, value); return nil }); err != nil {
			t.Fatal(err)
		}
		order.PutUint64(b[seal:], j.seal(txid))
	}
	absurd := []uint64{0, 1, 2, m.root, m.freelist, m.numPages - 1, m.numPages, m.numPages + 1, 1 << 31, 1 << 40, 1<<62 + 1, 1<<63 - 1, 1 << 63, math.MaxUint64 - 1, math.MaxUint64}
	for field, at := range map[string]int{"page size and flags": 8, "root": 16, "free list": 32, "pages": 40, "txid": 48} {
		for _, value := range absurd {
			for _, pages := range [][]int{{newest}, {0, pageBytes}} {
				damaged := slices.Clone(file)
				for _, page := range pages {
					b := damaged[page+metaAt : page+metaAt+metaBytes]
					if order.Uint64(b[at:]) == value {
						continue
					}
					order.PutUint64(b[at:], value)
					order.PutUint64(b[56:], hash64(b[:56]))
				}
				if field == "txid" {
					reseal(damaged, value)
				}
				var m0, m1 runtime.MemStats
				runtime.ReadMemStats(&m0)
				recs, missing, err := startOn(t, dir, damaged)
				runtime.ReadMemStats(&m1)
				switch {
				case err != nil && !errors.Is(err, pageservice.ErrCorrupt):
					t.Errorf("%s %d of %d meta pages: %v", field, value, len(pages), err)
				case err == nil && !slices.Equal(recs, want) && !missing:
					t.Errorf("%s %d of %d meta pages: %d records of %d", field, value, len(pages), len(recs), len(want))
				case err == nil && field == "txid" && value > mostTxid:
					t.Errorf("%s %d of %d meta pages is used", field, value, len(pages))
				}
				if err == nil { // then it can be written to
					j, recs, err := start(dir, Options{NoSync: true}, keepAll)
					if err == nil {
						err = errors.Join(writeAll(j, "x"), j.Close())
					}
					if err != nil {
						t.Fatalf("%s %d of %d meta pages: a write: %v", field, value, len(pages), err)
					}
					again, read, err := start(dir, Options{NoSync: true}, keepAll)
					if err != nil || len(read) != len(recs)+1 {
						t.Fatalf("%s %d of %d meta pages: %d records, then %d, %v", field, value, len(pages), len(recs), len(read), err)
					}
					_ = again.Close()
				}
				if got := m1.TotalAlloc - m0.TotalAlloc; got > 16<<20 {
					t.Errorf("%s %d of %d meta pages: %d bytes allocated for a file of %d", field, value, len(pages), got, len(file))
				}
			}
		}
	}
}

// tempFile returns an open file with this content.
func tempFile(t *testing.T, content []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// A file that is missing where there was one before is not a beginning.
func TestALostFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	j, _ := open(t, dir, Options{})
	if err := errors.Join(writeAll(j, "x"), j.Close(), os.Rename(path, path+".away")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, _, err := start(dir, Options{}, keepAll)
		if !errors.Is(err, pageservice.ErrCorrupt) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove "+filepath.Base(used(path))) {
			t.Fatal(err)
		}
		for _, name := range []string{path, unfinished(path)} {
			if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	// One that an earlier version made is remembered from its first start on.
	if err := errors.Join(os.Remove(used(path)), os.Rename(path+".away", path)); err != nil {
		t.Fatal(err)
	}
	j, recs := open(t, dir, Options{})
	if err := errors.Join(j.Close(), os.Remove(path)); err != nil || len(recs) != 1 {
		t.Fatal(recs, err)
	}
	if _, _, err := start(dir, Options{}, keepAll); !errors.Is(err, pageservice.ErrCorrupt) {
		t.Fatal(err)
	}
	// The error says what to do, and that helps.
	if err := os.Remove(used(path)); err != nil {
		t.Fatal(err)
	}
	if _, recs := open(t, dir, Options{}); len(recs) != 0 {
		t.Error(recs)
	}
}

// An empty file, or one that was cut off, is not a new one.
func TestDamageOfTheLength(t *testing.T) {
	dir := t.TempDir()
	_, file, _ := wholeFile(t, 20)
	_, m := newestMeta(t, file)
	for size := 0; size < int(m.numPages)*os.Getpagesize(); size += 509 {
		if recs, _, err := startOn(t, dir, file[:size]); !errors.Is(err, pageservice.ErrCorrupt) {
			t.Errorf("cut to %d bytes: %d records, %v", size, len(recs), err)
		}
	}
}

// A file gets its name when it is complete. What another process left before is not used.
func TestAFileThatWasNotFinishedIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	rest := unfinished(filepath.Join(dir, FileName))
	if err := os.WriteFile(rest, []byte("not finished"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want := range 2 {
		j, recs := open(t, dir, Options{})
		if len(recs) != want {
			t.Fatal(recs)
		}
		if err := errors.Join(writeAll(j, "x"), j.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(rest); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

// Of several that make the file at once, one succeeds, and the others name it.
func TestSeveralStartAtOnce(t *testing.T) {
	for range 20 {
		dir := t.TempDir()
		const n = 4
		type result struct {
			j   *Journal
			err error
		}
		all := make(chan result, n)
		for range n {
			go func() {
				j, _, err := start(dir, Options{NoSync: true, LockTimeout: 1}, keepAll)
				all <- result{j, err}
			}()
		}
		var started []*Journal
		for range n {
			if r := <-all; r.err == nil {
				started = append(started, r.j)
			} else if !strings.Contains(r.err.Error(), "in use by ") {
				t.Error(r.err)
			}
		}
		if len(started) != 1 {
			t.Errorf("%d journals have the file", len(started))
		}
		for _, j := range started {
			if err := j.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A list of 65535 free pages or more has its length in another place. Nor need a page be as
// long as those of this machine.
func TestManyFreePages(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 80 MB")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	db, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: minPageBytes, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(makeBucket(db, &tally{}), db.Close()); err != nil {
		t.Fatal(err)
	}
	needed := true
	owner := pageservice.LogOwner{
		Keep: func([]byte) [][]byte { return nil },
		LiveBytes: func() int64 {
			if needed {
				return 1 << 40
			}
			return 0
		},
	}
	j, _ := openFor(t, dir, Options{NoSync: true, SlackBytes: 1}, owner)
	for range 80 {
		if err := writeAll(j, strings.Repeat("x", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	needed = false
	for range 10 {
		if err := writeAll(j, strings.Repeat("y", 4<<20)); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		if err := writeAll(j, "z"); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := parseMeta(file, 0)
	if second, _ := parseMeta(file[minPageBytes:], 1); second.txid > m.txid {
		m = second
	}
	if count := binary.NativeEndian.Uint16(file[m.freelist*minPageBytes+10:]); count != math.MaxUint16 {
		t.Fatalf("only %d pages are free", count)
	}
	missing := false
	owner.Missing = func(string) { missing = true }
	j, recs := openFor(t, dir, Options{NoSync: true}, owner)
	if err := writeAll(j, "more"); err != nil || missing || len(recs) == 0 || recs[len(recs)-1] != "z" {
		t.Fatal(err, missing, len(recs))
	}
}

// A page that is full to its last byte is as whole as any other.
func TestFullPagesAreNotDamaged(t *testing.T) {
	const tableBytes = headerBytes + elementBytes + keyBytes + checksumBytes
	for pages := 1; pages <= 4; pages++ {
		for _, more := range []int{-1, 0, 1} {
			dir := t.TempDir()
			want := strings.Repeat("x", pages*os.Getpagesize()-tableBytes+more)
			j, _ := open(t, dir, Options{NoSync: true})
			if err := errors.Join(writeAll(j, want), j.Close()); err != nil {
				t.Fatal(err)
			}
			j, recs, err := start(dir, Options{NoSync: true}, keepAll)
			if err != nil {
				t.Errorf("%d pages %+d bytes: %v", pages, more, err)
				continue
			}
			if err := j.Close(); err != nil || len(recs) != 1 || recs[0] != want {
				t.Errorf("%d pages %+d bytes: %d records, %v", pages, more, len(recs), err)
			}
		}
	}
}

// A journal of kv3fs 0.1.0 has the number of records in place of a seal.
func TestAFileOfAnEarlierVersion(t *testing.T) {
	dir := t.TempDir()
	_, file, want := wholeFile(t, 20)
	_, m := newestMeta(t, file)
	at := int(m.root)*os.Getpagesize() + headerBytes + elementBytes + len(bucket) + 8
	binary.NativeEndian.PutUint64(file[at:], uint64(len(want)))
	if recs, missing, err := startOn(t, dir, file); err != nil || missing || !slices.Equal(recs, want) {
		t.Fatal(len(recs), missing, err)
	}
	binary.NativeEndian.PutUint64(file[at:], uint64(len(want)+1))
	if _, _, err := startOn(t, dir, file); !errors.Is(err, pageservice.ErrCorrupt) {
		t.Fatal(err)
	}
}
