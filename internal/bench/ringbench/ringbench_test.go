package ringbench

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

func TestOptions(t *testing.T) {
	var o Options
	o.Binary = "kv3fs"
	if err := o.fillDefaults(); err != nil {
		t.Fatal(err)
	}
	got := map[int64][2]int{}
	for _, c := range o.cases() {
		got[c.sizeBytes] = [2]int{c.depth, c.threads}
	}
	want := map[int64][2]int{4 << 10: {64, 1}, 128 << 10: {32, 32}, 1 << 20: {32, 32}, 4 << 20: {32, 32}}
	if !reflect.DeepEqual(got, want) || len(o.cases()) != 8 {
		t.Errorf("depth and threads are %v, want %v", got, want)
	}
	if n := PlainThreads(1<<20, 4, 32); n != 64 {
		t.Errorf("%d threads", n)
	}
	if n := PlainThreads(4<<10, 4, 64); n != 4 {
		t.Errorf("%d threads", n)
	}
	for want, o := range map[string]Options{
		"both --data and --mount":   {Mount: "/x"},
		"no kv3fs to start":         {},
		"that the benchmark starts": {Data: "/x", Mount: "/x", Scrape: true},
		"auto, buffered or direct":  {Binary: "x", IO: "mmap"},
		"multiples of 4 KiB":        {Binary: "x", SizesBytes: []int64{100}},
		"--file-bytes 128 MiB":      {Binary: "x", FileBytes: 64 << 20},
		"choose 1 to 256":           {Binary: "x", Rings: -1},
		"choose 1 to 4096":          {Binary: "x", Depth: -1},
		"at least one":              {Binary: "x", Runs: -1},
	} {
		if err := o.fillDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// Stripes must keep requests in flight apart and cover every block.
func TestLanesDivideTheFile(t *testing.T) {
	for _, stride := range []int{1, 3, 8} {
		const size, blocks = 4096, 8
		owner := map[int64]int{}
		for first := range stride {
			l := newStripe(size*blocks+100, size, 0, first, stride)
			for range 1000 {
				off := l.next()
				if off%size != 0 || off < 0 || off >= size*blocks || off != l.last {
					t.Fatalf("offset %d", off)
				}
				if was, ok := owner[off]; ok && was != first {
					t.Fatalf("stripes %d and %d share offset %d", was, first, off)
				}
				owner[off] = first
			}
		}
		if len(owner) != blocks {
			t.Errorf("stride %d: %d of %d blocks are ever used", stride, len(owner), blocks)
		}
	}
}

func testFiles(t *testing.T, rings int, sizeBytes int64) *files {
	t.Helper()
	dir := t.TempDir()
	f, err := makeFiles(t.Context(), dir, dir, rings, sizeBytes) // a directory stands in for a mount
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFilesHoldWhatIsExpectedOfThem(t *testing.T) {
	f := testFiles(t, 2, 3<<20)
	for ring := range 2 {
		b, err := os.ReadFile(f.path(f.data, ring, false))
		if err != nil || len(b) != 3<<20 {
			t.Fatal(len(b), err)
		}
		if err := checkRead(b, ring, 0); err != nil {
			t.Error(err)
		}
		if err := checkRead(b[1<<20:2<<20], ring, 1<<20); err != nil {
			t.Error(err)
		}
		if checkRead(b[1<<20:2<<20], ring, 1<<20+4096) == nil || checkRead(b, 1-ring, 0) == nil {
			t.Error("another place or file passes for this one")
		}
		b[5000] ^= 1
		if err := checkRead(b[4096:8192], ring, 4096); err == nil || !strings.Contains(err.Error(), "offset 5000") {
			t.Errorf("got %v", err)
		}
	}
	if err := f.remove(); err != nil {
		t.Error(err)
	}
	if _, err := makeFiles(t.Context(), t.TempDir(), t.TempDir(), 1, 1<<20); err == nil || !strings.Contains(err.Error(), "--data must be") {
		t.Errorf("two unrelated directories: %v", err)
	}
}

// buffersFor stands in for the rings' iovs. Like theirs, its memory is not Go's: several
// threads may use one buffer.
func buffersFor(t *testing.T, c testCase) (all [][]byte) {
	t.Helper()
	for range c.rings * c.depth {
		b, err := unix.Mmap(-1, 0, int(c.sizeBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(b) })
		all = append(all, b)
	}
	return all
}

func TestPlainLoopMovesAndChecks(t *testing.T) {
	f := testFiles(t, 2, 4<<20)
	for _, c := range []testCase{
		{false, 4096, 8, 2, 2}, {true, 4096, 8, 2, 2}, {false, 128 << 10, 4, 2, 8}, {true, 128 << 10, 4, 2, 8},
	} {
		for _, make := range []func(testCase, *files, [][]byte, bool) (*plainContender, error){newPlainContender, newMountContender} {
			p, err := make(c, f, buffersFor(t, c), false)
			if err != nil {
				t.Fatal(err)
			}
			s, err := p.run(t.Context(), 10*time.Millisecond, 1)
			if err != nil || s.requests == 0 || s.elapsed < 10*time.Millisecond {
				t.Errorf("%s %+v: %+v, %v", p.label, c, s, err)
			}
			if err := p.close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestPlainLoopFindsDamage(t *testing.T) {
	f := testFiles(t, 1, 1<<20)
	if err := os.Truncate(f.path(f.data, 0, false), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(f.path(f.data, 0, false), 1<<20); err != nil { // zeros
		t.Fatal(err)
	}
	p, err := newPlainContender(testCase{false, 4096, 1, 1, 1}, f, [][]byte{make([]byte, 4096)}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if _, err := p.run(t.Context(), time.Millisecond, 1); err == nil || !strings.Contains(err.Error(), "wrong bytes") {
		t.Errorf("zeros passed: %v", err)
	}
	if err := os.Truncate(f.path(f.data, 0, false), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := p.run(t.Context(), time.Millisecond, 1); err == nil || !strings.Contains(err.Error(), "bytes moved") {
		t.Errorf("a short read passed: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.run(ended, time.Hour, 1); err == nil {
		t.Error("an ended context did not end the run")
	}
}

func TestParseFio(t *testing.T) {
	good, err := os.ReadFile(filepath.Join("testdata", "fio.json"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseFio(good, false)
	if err != nil || s.requests != 198040 || s.elapsed.Round(time.Millisecond) != 301*time.Millisecond {
		t.Errorf("%+v, %v", s, err)
	}
	for name, out := range map[string]string{
		"no JSON":    "fio: engine io_uring not loadable",
		"cut off":    string(good[:200]),
		"no jobs":    `{"jobs": []}`,
		"no group":   `{"jobs": [{}, {}]}`,
		"no traffic": `{"jobs": [{"error": 38}]}`,
	} {
		if s, err := parseFio([]byte(out), false); err == nil {
			t.Errorf("%s: accepted as %+v", name, s)
		}
	}
	if _, err := parseFio(good, true); err == nil {
		t.Error("a read was taken for a write")
	}
}

func TestTable(t *testing.T) {
	big := spread(0.1, 0.05, 0.2)
	fio := spread(5, 4, 6)
	r := Report{
		Data: "/d", FileSystem: "ext4", IO: "auto", CPUs: 2, Runs: 5, RunSeconds: 0.5, FileBytes: 256 << 20,
		Setup: Setup{RingMs: spread(0.2, 0.1, 1.5), BigIovMs: &big},
		Cases: []Case{
			{Op: "read", SizeBytes: 4 << 10, Rings: 1, Depth: 64, Threads: 1, Ring: spread(2, 1.5, 2.5), Mount: spread(0.5, 0.4, 0.6), Plain: spread(4, 3, 5), Fio: &fio, RingToPlain: 0.5, MountToPlain: 0.125},
			{Op: "write", SizeBytes: 1 << 20, Rings: 2, Depth: 32, Threads: 64, Ring: spread(10, 9, 11), Mount: spread(5, 5, 5), Plain: spread(10, 9, 12), RingToPlain: 1, MountToPlain: 0.5},
		},
	}
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	checkWidth(t, b.String())
	golden, err := os.ReadFile(filepath.Join("testdata", "table.txt"))
	if err != nil || b.String() != string(golden) {
		t.Errorf("got\n%s\nwant (%v)\n%s", b.String(), err, golden)
	}
	r.Setup.BigIovMs, r.Setup.BigIovSkipped = nil, "/dev/shm has 64.0 MiB free"
	b.Reset()
	if r.WriteTable(&b); !strings.Contains(b.String(), "skipped: /dev/shm has 64.0 MiB free") {
		t.Errorf("the report does not say what was skipped:\n%s", b.String())
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func spread(median, least, most float64) measure.Spread {
	return measure.Spread{Median: median, Min: least, Max: most}
}

// checkWidth checks that a report fits on a terminal.
func checkWidth(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > measure.Width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
