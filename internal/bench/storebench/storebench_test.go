package storebench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

// mounting returns a kv3fs binary that can mount.
func mounting(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a mount; -short")
	}
	daemontest.NeedMounts(t)
	bin, err := daemontest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func TestRun(t *testing.T) {
	bin, scratch := mounting(t), t.TempDir()
	last, of := 0, 0
	r, err := Run(t.Context(), Options{
		Scratch: scratch, Binary: bin, IO: "auto", Blocks: 16, BlockBytes: 64 << 10, ShardBytes: 16 << 10, Depth: 4,
		Keys: 16, IndexBlocks: 64, Runs: 2, RunTime: time.Millisecond,
		Done: func(runs, all int) { last, of = runs, all },
	})
	if err != nil {
		t.Fatal(err)
	}
	if last != of || of != 2*(contenders+4*2+5) {
		t.Errorf("%d runs of %d were reported", last, of)
	}
	if len(r.UCM) != 1 || r.UCM[0].BlockBytes != 256<<10 {
		t.Fatalf("UCM's way: %+v", r.UCM)
	}
	for name, c := range map[string]struct {
		got  []Load
		want []string
	}{
		"cold":     {r.Cold, []string{WayRing, WayChain, WayChainNoSums, WayDs3fs, WayChainOpening}},
		"UCM cold": {r.UCM[0].Cold, []string{WayPlain, WayPlainOpening, WayUCM, WayUCMNoSums}},
		"UCM warm": {r.UCM[0].Warm, []string{WayPlain, WayPlainOpening, WayUCM, WayUCMNoSums}},
		"UCM save": {r.UCM[0].Save, []string{WayPlain, WayUCM, WayUCMNoSums, WayLimited, WayLimitedNoSums}},
		"warm":     {r.Warm, []string{WayCopy, WayChain, WayChainNoSums}},
		"segment":  {r.Segment, []string{WaySegment, WaySegmentNoSums}},
	} {
		var ways []string
		for _, l := range c.got {
			ways = append(ways, l.Way)
			if l.GBps.Median <= 0 || l.GBps.Min > l.GBps.Median || l.GBps.Max < l.GBps.Median {
				t.Errorf("%s: %+v", name, l)
			}
		}
		if !slices.Equal(ways, c.want) {
			t.Errorf("%s has %v, want %v", name, ways, c.want)
		}
	}
	if len(r.Lookups) != 2 || r.Lookups[0].P50Ms.Median <= 0 || r.Lookups[1].P99Ms.Median < r.Lookups[1].P50Ms.Median {
		t.Errorf("%+v", r.Lookups)
	}
	if _, err := exec.LookPath("strace"); err == nil {
		if r.Calls == nil || r.Calls.Reads < tracedHits {
			t.Errorf("calls: %+v, %s", r.Calls, r.CallsSkipped)
		}
	} else if r.CallsSkipped != errNoStrace.Error() {
		t.Errorf("calls without strace: %q", r.CallsSkipped)
	}
	if left, _ := os.ReadDir(scratch); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOptions(t *testing.T) {
	o := Options{Binary: "kv3fs"}
	if err := o.fillDefaults(); err != nil {
		t.Fatal(err)
	}
	if o.Blocks != 128 || o.BlockBytes != 2<<20 || o.ShardBytes != 2<<20 || o.Keys != 512 || o.IO != "auto" {
		t.Errorf("%+v", o)
	}
	for want, o := range map[string]Options{
		"no kv3fs to start":      {},
		"buffered or direct":     {Binary: "x", IO: "mmap"},
		"choose 4 to 65536":      {Binary: "x", Blocks: 1},
		"a multiple of 4096":     {Binary: "x", ShardBytes: 1000},
		"not a multiple":         {Binary: "x", ShardBytes: 3 << 12},
		"choose 1 to 4096":       {Binary: "x", Depth: -1},
		"at least one key":       {Binary: "x", Keys: 100, IndexBlocks: 10},
		"at least one of a mill": {Binary: "x", Runs: -1},
		"less than a TiB":        {Binary: "x", Blocks: 1 << 16, BlockBytes: 1 << 50},
		"at most 1048576":        {Binary: "x", IndexBlocks: 1 << 30},
	} {
		if err := o.fillDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// A load must return what was saved, and other bytes must be noticed.
func TestDamageIsFound(t *testing.T) {
	l := kvstore.Layout{BlockBytes: 8192, ShardBytes: 4096}
	bufs, err := newBuffers(4, l.BlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer bufs.close()
	one, other := blocksOf(1, 4, l), blocksOf(2, 4, l)
	if slices.Equal(one.keys, other.keys) || one.keys[0] == one.keys[1] {
		t.Fatalf("the keys are %v and %v", one.keys, other.keys)
	}
	copied := &contender{name: WayCopy, open: func(context.Context) (*way, error) { return openCopy(one, bufs, 2) }}
	if gbps, err := copied.sample(t.Context(), []*blocks{one}, time.Millisecond); err != nil || gbps <= 0 {
		t.Errorf("%v, %v", gbps, err)
	}
	if _, err := copied.sample(t.Context(), []*blocks{other}, time.Millisecond); err == nil || !strings.Contains(err.Error(), "wrong bytes") {
		t.Errorf("another set: %v", err)
	}
	lukewarm := &contender{name: "lukewarm", open: func(context.Context) (*way, error) {
		w, err := openCopy(one, bufs, 2)
		w.verify = func(int) error { return errors.New("neither cold nor warm") }
		return w, err
	}}
	if _, err := lukewarm.sample(t.Context(), []*blocks{one}, time.Millisecond); err == nil || !strings.Contains(err.Error(), "lukewarm: neither") {
		t.Errorf("not as it should be: %v", err)
	}
	if err := one.check(0, bufs.parts[1]); err == nil {
		t.Error("another block passes")
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := copied.sample(interrupted, []*blocks{one}, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// The cost of checksums is not measured on blocks without checksums.
func TestMissingChecksumsAreFound(t *testing.T) {
	o := Options{Binary: mounting(t), IO: "buffered", Blocks: 4, BlockBytes: 4096}
	if err := o.fillDefaults(); err != nil {
		t.Fatal(err)
	}
	d, err := measure.StartDaemon(t.Context(), o.Binary, t.TempDir(), o.IO)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	b := &bench{o: o, daemon: d, sets: []*blocks{blocksOf(1, o.Blocks, o.layout())}}
	if b.bufs, err = newBuffers(o.Blocks, o.BlockBytes); err != nil {
		t.Fatal(err)
	}
	defer b.bufs.close()
	if err := b.store(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(d.Data, ".kv3fs-sums")); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*contender{
		{name: WayDs3fs, open: b.openAlone},
		{name: WayChain, open: func(context.Context) (*way, error) {
			return b.openChain(kvstore.ChecksumsAuto, 1, func(int) int { return 1 })
		}},
	} {
		if _, err := x.sample(t.Context(), b.sets, time.Millisecond); !errors.Is(err, kvstore.ErrMiss) {
			t.Errorf("%s: %v; a block whose checksum is lost is a miss", x.name, err)
		}
	}
}

func TestParseCalls(t *testing.T) {
	reads := strings.Repeat("12 pread64(5, \"...\", 4096, 0) = 4096\n", tracedHits)
	body := func(calls string) string {
		return "12 openat(AT_FDCWD, \"before\") = 3\n12 write(1, \"" + hitsFrom + "\\n\") = 1\n" + calls + "12 write(1, \"" + hitsTo + "\\n\") = 1\n12 rename(\"after\") = 0\n"
	}
	c, err := parseCalls(body(reads))
	if err != nil || c.Reads != tracedHits || len(c.Names) != 0 || c.PerHit() != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = parseCalls(body(reads + "12 openat(AT_FDCWD, \"x\") = 5\n13 fstat(5, {}) = 0\n13 epoll_pwait(4, [], 128, 0) = 0\n12 close(5) = 0\n"))
	if err != nil || c.Names["openat"] != 1 || c.Names["fstat"] != 1 || c.Names["close"] != 1 || len(c.Names) != 3 || c.PerHit() != 3.0/tracedHits {
		t.Errorf("%+v, %v", c, err)
	}
	for _, trace := range []string{"", body(""), strings.Split(body(reads), hitsTo)[0]} {
		if c, err := parseCalls(trace); err == nil {
			t.Errorf("accepted as %+v", c)
		}
	}
}

func TestTable(t *testing.T) {
	s := func(median float64) measure.Spread {
		return measure.Spread{Median: median, Min: median / 2, Max: median * 2}
	}
	r := Report{
		Scratch: "/d", FileSystem: "ext4", IO: "auto", CPUs: 2, Runs: 5, RunSeconds: 1,
		Blocks: 128, BlockBytes: 2 << 20, ShardBytes: 64 << 10, Depth: 32, Keys: 512, IndexBlocks: 16384,
		Cold: []Load{{WayRing, s(10)}, {WayChain, s(9)}, {WayChainNoSums, s(10)}, {WayDs3fs, s(9.5)}, {WayChainOpening, s(6)}},
		UCM: []UCMSize{
			{
				256 << 10, []Load{{WayPlain, s(1)}, {WayPlainOpening, s(0.625)}, {WayUCM, s(0.5)}, {WayUCMNoSums, s(0.625)}},
				[]Load{{WayPlain, s(8)}, {WayPlainOpening, s(7.5)}, {WayUCM, s(6)}, {WayUCMNoSums, s(8)}},
				[]Load{{WayPlain, s(4)}, {WayUCM, s(2)}, {WayUCMNoSums, s(2.5)}, {WayLimited, s(1)}, {WayLimitedNoSums, s(2)}},
			},
			{
				8 << 20, []Load{{WayPlain, s(2)}, {WayPlainOpening, s(2)}, {WayUCM, s(1.9)}, {WayUCMNoSums, s(2)}},
				[]Load{{WayPlain, s(9)}, {WayPlainOpening, s(9)}, {WayUCM, s(9)}, {WayUCMNoSums, s(9)}},
				nil, // interrupted
			},
		},
		Warm:    []Load{{WayCopy, s(20)}, {WayChain, s(15)}, {WayChainNoSums, s(19)}},
		Segment: []Load{{WaySegment, s(8)}, {WaySegmentNoSums, s(8.5)}},
		Lookups: []Lookup{{WayCache, s(0.05), s(0.1)}, {WaySegment, s(0.06), s(0.3)}},
		Calls:   &Calls{Hits: 1000, Reads: 2000, Names: map[string]int{}},
	}
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	checkWidth(t, b.String())
	golden, err := os.ReadFile(filepath.Join("testdata", "table.txt"))
	if err != nil || b.String() != string(golden) {
		t.Errorf("got\n%s\nwant (%v)\n%s", b.String(), err, golden)
	}
	r.Calls, r.CallsSkipped = nil, "strace is not installed"
	b.Reset()
	if r.WriteTable(&b); !strings.Contains(b.String(), "not counted: strace is not installed") {
		t.Errorf("the report does not say what was not counted:\n%s", b.String())
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
	b.Reset()
	if err := (&Report{}).WriteTable(&b); err != nil { // interrupted at once
		t.Error(err)
	}
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
