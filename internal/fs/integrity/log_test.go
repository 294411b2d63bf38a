package integrity

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Whatever a crash or a bad disk leaves of the log, no good byte is called damaged, and every
// sum that is still used is right.
func TestDamagedLog(t *testing.T) {
	rng := rngFor(t)
	dir := dirs(t)[0]
	s := openStore(t, dir)
	content := map[string][]byte{}
	for i := range 12 {
		o := create(t, s, filepath.Join(dir, "f"+itoa(i)))
		for range 1 + rng.IntN(3) { // the older records are overtaken
			content[o.path] = random(rng, 1+rng.Int64N(4*RangeBytes))
			if err := o.sums.Change(o.fd, func() error { return unix.Ftruncate(o.fd, 0) }); err != nil {
				t.Fatal(err)
			}
			o.write(content[o.path], 0)
			o.close()
			s.save(true)
			o = open(t, s, o.path, unix.O_RDWR)
		}
		o.close()
	}
	s.Close()
	logs, err := filepath.Glob(filepath.Join(dir, "sums", "*"+segmentSuffix))
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs %v, %v", logs, err)
	}
	whole, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	all := int64(0)
	for _, b := range content {
		all += int64(len(b))
	}
	for round := range 15 {
		left := append([]byte(nil), whole[:rng.IntN(len(whole)+1)]...)
		for range rng.IntN(3) {
			if len(left) > 0 {
				left[rng.IntN(len(left))] ^= 1 << rng.IntN(8)
			}
		}
		if round == 0 {
			left = whole
		}
		more, err := filepath.Glob(filepath.Join(dir, "sums", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range more {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(logs[0], left, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, dir)
		sum := int64(0)
		for path, want := range content {
			o := open(t, s, path, unix.O_RDONLY)
			b, bad, found, verified := o.read(0, int64(len(want)))
			mustBe(t, path, b, want)
			if found {
				t.Fatalf("%s: called damaged: %v", path, bad)
			}
			sum += verified
			o.close()
		}
		if round == 0 && sum != all {
			t.Errorf("with the whole log, %d of %d bytes were verified", sum, all)
		}
		s.Close()
	}
}

// The log stays as small as what it names, and loses nothing by it.
func TestCompacts(t *testing.T) {
	rng := rngFor(t)
	dir := dirs(t)[0]
	l, err := openLog(filepath.Join(dir, "sums"), true)
	if err != nil {
		t.Fatal(err)
	}
	l.segmentBytes = 64 << 10
	words := make(table)
	for k := range int64(100) {
		words.set(k, newWord(rng.Uint64(), firm), always)
	}
	last := map[uint64]int64{}
	removed := 0
	for i := range int64(3000) {
		ino := 1 + rng.Uint64N(50)
		if rng.IntN(10) == 0 {
			if err := l.remove(ino); err != nil {
				t.Fatal(err)
			}
			delete(last, ino)
			continue
		}
		last[ino] = i
		if err := l.put(&record{stamp{ino: ino, mtimeNs: i}, 1, tail{}, words}); err != nil {
			t.Fatal(err)
		}
		if done, err := l.compact(); err != nil {
			t.Fatal(err)
		} else if done {
			removed++
		}
	}
	for k := range int64(200 << 10) { // a record whose size has no room in its place
		words.set(k, newWord(rng.Uint64(), firm), always)
	}
	last[7] = 1 << 40
	for range 3 {
		if err := l.put(&record{stamp{ino: 7, mtimeNs: 1 << 40}, 1, tail{}, words}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if len(l.index) != len(last) {
			t.Errorf("%d files, want %d", len(l.index), len(last))
		}
		for ino, want := range last {
			if r := l.get(ino); r == nil || r.stamp.mtimeNs != want || ino == 7 && (len(r.words) != len(words) || *r.words[300] != *words[300]) {
				t.Fatalf("inode %d: %v, want time %d", ino, r, want)
			}
		}
		l.close()
		if l, err = openLog(l.dir, true); err != nil {
			t.Fatal(err)
		}
	}
	defer l.close()
	live := int64(0)
	for _, p := range l.index {
		live += l.bytesLocked(p)
	}
	if l.live != live {
		t.Errorf("%d bytes are counted as live of %d", l.live, live)
	}
	if removed == 0 {
		t.Error("nothing was compacted")
	}
}

func segmentsIn(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A daemon that starts, saves a little and dies, again and again, goes on with one segment, also behind a record that a
// crash has cut.
func TestManyStarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sums")
	const starts = 40
	for i := range uint64(starts) {
		l, err := openLog(dir, true)
		if err != nil {
			t.Fatal(err)
		}
		if l.files() != int(i) {
			t.Fatalf("start %d: %d files", i, l.files())
		}
		if err := l.put(&record{stamp: stamp{ino: 1 + i, mtimeNs: 5}}); err != nil {
			t.Fatal(err)
		}
		last := l.segments[len(l.segments)-1]
		if _, err := last.file.WriteAt(make([]byte, i%3*50), last.bytes); err != nil {
			t.Fatal(err)
		}
		l.close()
	}
	if names := segmentsIn(t, dir); len(names) != 1 {
		t.Errorf("%d segments", len(names))
	}
}

// Many small segments, as earlier versions left them, become few: those without a record at once.
func TestSmallSegments(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sums")
	l, err := openLog(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	l.segmentBytes = 1 // each record has one
	const files = 40
	for i := range uint64(files) {
		if err := l.put(&record{stamp: stamp{ino: 1 + i, mtimeNs: 5}}); err != nil {
			t.Fatal(err)
		}
	}
	l.close()
	for i, name := range segmentsIn(t, dir) {
		if i%4 == 0 {
			if err := os.Truncate(name, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	const left = files * 3 / 4
	if l, err = openLog(dir, true); err != nil {
		t.Fatal(err)
	}
	if names := segmentsIn(t, dir); len(names) != left || len(l.segments) != left {
		t.Errorf("%d segments of %d records, %d open", len(names), left, len(l.segments))
	}
	for again := true; again; {
		if again, err = l.compact(); err != nil {
			t.Fatal(err)
		}
	}
	l.close()
	if names := segmentsIn(t, dir); len(names) > spareSegments {
		t.Errorf("%d segments after they were compacted", len(names))
	}
	if l, err = openLog(dir, true); err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if l.files() != left {
		t.Errorf("%d files, want %d", l.files(), left)
	}
}

// A log that is only read stays as it is.
func TestReadonlyLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sums")
	l, err := openLog(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	l.segmentBytes = 1
	for range 40 {
		if err := l.put(&record{stamp: stamp{ino: 1, mtimeNs: 5}}); err != nil {
			t.Fatal(err)
		}
	}
	l.close()
	before := segmentsIn(t, dir)
	if err := os.Truncate(before[7], 0); err != nil {
		t.Fatal(err)
	}
	if l, err = openLog(dir, false); err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.segmentBytes = 1
	if again, err := l.compact(); again || err != nil {
		t.Errorf("compacted: %v, %v", again, err)
	}
	if after := segmentsIn(t, dir); len(after) != len(before) {
		t.Errorf("%d segments, before %d", len(after), len(before))
	}
}

// Nothing in a segment makes the reader fail, or find what nobody wrote.
func FuzzRecord(f *testing.F) {
	words := make(table)
	words.set(0, 5, always)
	words.set(1, 6, always)
	words.set(9000, 7, always)
	f.Add((&record{stamp{1, 2, 3, 4, 8}, 5, tail{6, 7}, words}).append(nil))
	f.Add(appendGone(nil, 9))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, ino, gone, ok := recordAt(b)
		if !ok || gone {
			return
		}
		var r record
		if !r.parse(b[:n]) {
			return
		}
		again, ino2, _, ok := recordAt(r.append(nil))
		if r.stamp.ino != ino || !ok || ino2 != ino || again > n {
			t.Fatalf("inode %d, again %d in %d of %d bytes, %v", r.stamp.ino, ino2, again, n, ok)
		}
	})
}
