package kvstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

var testLayout = Layout{BlockBytes: 8192, ShardBytes: 4096}

// openTest opens a chain in a directory of its own, with a cache for 64 blocks.
func openTest(t testing.TB, chain string, change func(*Config)) *Store {
	t.Helper()
	c := Config{Namespace: keys.Namespace{Model: "kv3fs/test", BlockTokens: 16}, Layout: testLayout}
	if strings.HasPrefix(chain, "Cache") {
		c.Cache = &CacheOptions{CapacityBytes: 64 * testLayout.BlockBytes}
	}
	switch {
	case strings.HasSuffix(chain, "Posix"):
		c.Posix = &PosixOptions{Dirs: []string{t.TempDir()}}
	case strings.HasSuffix(chain, "Segment"):
		c.Segment = &SegmentOptions{Dir: t.TempDir(), CapacityBytes: 16 << 20, SegmentBytes: 1 << 20}
	}
	if change != nil {
		change(&c)
	}
	s, err := Open(chain, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testKeys(n int) (all []Key) {
	for i := range n {
		all = append(all, Key{1, byte(i), byte(i >> 8)})
	}
	return all
}

// buffers returns one for each block, filled with bytes that the key decides.
func buffers(blocks []Key) (bufs [][]byte) {
	for _, key := range blocks {
		bufs = append(bufs, bytes.Repeat(key[:], int(testLayout.BlockBytes)/len(key)))
	}
	return bufs
}

// save stores blocks and flushes.
func save(t testing.TB, s *Store, blocks ...Key) {
	t.Helper()
	task, err := s.Save(context.Background(), testLayout.ByBlock(blocks, buffers(blocks)))
	if err == nil {
		err = task.Wait(context.Background())
	}
	if err := errors.Join(err, s.Flush(context.Background())); err != nil {
		t.Fatal(err)
	}
}

// A caller may use its slice of shards again as soon as Load or Save has returned.
func TestSlicesBelongToTheCallerAgain(t *testing.T) {
	s := openTest(t, "Cache|Segment", nil)
	blocks := testKeys(20)
	shards := testLayout.ByBlock(blocks, buffers(blocks))
	reuse := func(task *Task, err error) *Task {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for i := range shards {
			shards[i] = Shard{Index: -1} // a data race if it is still read
		}
		if err := task.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		return task
	}
	reuse(s.Save(t.Context(), shards))
	loaded := make([][]byte, len(blocks))
	for i := range loaded {
		loaded[i] = make([]byte, testLayout.BlockBytes)
	}
	shards = testLayout.ByLayer(blocks, loaded)
	want := slices.Clone(shards)
	task := reuse(s.Load(t.Context(), shards))
	for i, wanted := range buffers(blocks) {
		if !bytes.Equal(loaded[i], wanted) {
			t.Errorf("block %d is another", i)
		}
	}
	for i := range task.Len() {
		if got := task.Shard(i); got.Key != want[i].Key || got.Index != want[i].Index || &got.Buf[0] != &want[i].Buf[0] {
			t.Errorf("shard %d is %+v", i, got)
		}
	}
}

func TestContains(t *testing.T) {
	s := openTest(t, "Cache|Segment", nil)
	blocks := testKeys(2)
	save(t, s, blocks[0])
	for i, want := range []bool{true, false} {
		if is, err := s.Contains(t.Context(), blocks[i]); is != want || err != nil {
			t.Errorf("block %d: %v, %v", i, is, err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if is, err := s.Contains(ended, blocks[1]); is || err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", is, err)
	}
}

// Purge deletes the blocks of its own namespace and no other's.
func TestPurge(t *testing.T) {
	for _, chain := range []string{"Posix", "Cache|Posix", "Segment", "Cache|Segment", "Cache|Empty", "Empty"} {
		t.Run(chain, func(t *testing.T) {
			s := openTest(t, chain, func(c *Config) {
				if c.Cache != nil {
					c.Cache.CapacityBytes *= 64
				}
				if c.Segment != nil {
					c.Segment.CapacityBytes = 64 << 20
				}
			})
			if n, err := s.Purge(t.Context()); n != 0 || err != nil {
				t.Fatalf("an empty store: %d, %v", n, err)
			}
			blocks := testKeys(purgeBatch + 100)
			save(t, s, blocks...)
			want := len(blocks)
			if chain == "Empty" {
				want = 0
			}
			if n, err := s.Purge(t.Context()); n != want || err != nil {
				t.Fatalf("%d, %v; want %d", n, err, want)
			}
			if n, err := s.Purge(t.Context()); n != 0 || err != nil {
				t.Errorf("again: %d, %v", n, err)
			}
			for key, err := range s.Keys(t.Context()) {
				t.Fatalf("%s is left, %v", key, err)
			}
			found := make([]bool, len(blocks))
			if err := s.Lookup(t.Context(), blocks, found); err != nil || slices.Contains(found, true) {
				t.Errorf("a block is found, or %v", err)
			}
			save(t, s, blocks[:3]...)
			if is, err := s.Contains(t.Context(), blocks[2]); is != (want > 0) || err != nil {
				t.Errorf("saved again: %v, %v", is, err)
			}
		})
	}
}

// Errors have types of this package, wherever stores wrap theirs.
func TestErrorsArePublic(t *testing.T) {
	damage := &kv.CorruptError{Key: Key{1}, Where: "a file", What: "cut short"}
	for name, err := range map[string]error{
		"plain": damage, "wrapped": fmt.Errorf("load: %w", damage), "joined": errors.Join(context.Canceled, damage),
	} {
		err = public(err)
		var got *CorruptError
		if !errors.As(err, &got) || got.Where != "a file" || !errors.Is(err, ErrMiss) || !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if other := new(*BatchError); errors.As(err, other) {
			t.Errorf("%s is a BatchError, too", name)
		}
		if public(errors.Join(err)).Error() != err.Error() || got.Error() != damage.Error() {
			t.Errorf("%s: the text changed: %v", name, err)
		}
	}
	if !errors.Is(public(errors.Join(context.Canceled, damage)), context.Canceled) {
		t.Error("what is joined with damage is lost")
	}
	var refused *BatchError
	if err := public(fmt.Errorf("x: %w", &kv.BatchError{Shard: 3, Reason: "r"})); !errors.As(err, &refused) || refused.Shard != 3 || refused.Reason != "r" {
		t.Error(err)
	}
	for _, err := range []error{nil, ErrMiss, ErrFull, kv.Abandoned("a disk")} {
		if public(err) != err {
			t.Errorf("%v becomes %v", err, public(err))
		}
	}
}

func TestBatchesThatAreRefused(t *testing.T) {
	s := openTest(t, "Cache|Empty", nil)
	blocks := testKeys(2)
	for name, shards := range map[string][]Shard{
		"no buffers":   testLayout.ByBlock(blocks, nil),
		"short":        testLayout.ByLayer(blocks, [][]byte{make([]byte, 8192), make([]byte, 8191)}),
		"empty layout": Layout{}.ByBlock(blocks, buffers(blocks)),
	} {
		var refused *BatchError
		if task, err := s.Save(t.Context(), shards); task != nil || !errors.As(err, &refused) {
			t.Errorf("%s: Save: %v", name, err)
		}
		if task, err := s.Load(t.Context(), shards); task != nil || !errors.As(err, &refused) {
			t.Errorf("%s: Load: %v", name, err)
		}
	}
	var refused *BatchError
	if err := s.Lookup(t.Context(), blocks, make([]bool, 1)); !errors.As(err, &refused) {
		t.Errorf("Lookup: %v", err)
	}
}

// A layer with a shard that failed has landed, and must not be used.
func TestLandedErr(t *testing.T) {
	s := openTest(t, "Segment", nil)
	blocks := testKeys(2)
	save(t, s, blocks[0])
	task, err := s.Load(t.Context(), append(testLayout.ByBlock(blocks[:1], buffers(blocks)), Shard{Key: blocks[1], Index: 1, Buf: make([]byte, 4096)}))
	if err != nil {
		t.Fatal(err)
	}
	<-task.Landed(0)
	if err := task.LandedErr(0); err != nil {
		t.Error(err)
	}
	<-task.Landed(1)
	if err := task.LandedErr(1); !errors.Is(err, ErrMiss) {
		t.Errorf("a layer with a miss: %v", err)
	}
	if err := task.LandedErr(2); err != nil {
		t.Errorf("a layer that the batch does not have: %v", err)
	}
	_ = task.Wait(t.Context())
}

// A directory may have a colon in its name, which a list of UCM's could not have.
func TestDirectoriesWithColons(t *testing.T) {
	dirs := []string{filepath.Join(t.TempDir(), "a:b"), filepath.Join(t.TempDir(), ":")}
	s := openTest(t, "Posix", func(c *Config) { c.Posix.Dirs = dirs })
	save(t, s, testKeys(1)...)
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestOptionsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		chain  string
		change func(*Config)
		want   string
	}{
		"another store's": {"Cache|Segment", func(c *Config) { c.Posix = &PosixOptions{} }, "Config.Posix is set, and the chain Cache|Segment has no Posix"},
		"a cache's":       {"Segment", func(c *Config) { c.Cache = &CacheOptions{} }, "Config.Cache is set"},
		"no model":        {"Empty", func(c *Config) { c.Namespace = keys.Namespace{} }, "model"},
		"no layout":       {"Empty", func(c *Config) { c.Layout = Layout{} }, "BlockBytes"},
		"timeout":         {"Empty", func(c *Config) { c.Timeout = -time.Second }, "Config.Timeout is -1s"},
		"checksums":       {"Empty", func(c *Config) { c.Checksums = "some" }, "auto, require or off"},
		"no dirs":         {"Posix", func(c *Config) { c.Posix = nil }, "Config.Posix.Dirs is empty"},
		"digits":          {"Posix", func(c *Config) { c.Posix.KeyDigits = 6 }, "Config.Posix.KeyDigits is 6; use 1 to 5, or OneDir"},
		"negative":        {"Posix", func(c *Config) { c.Posix.Transfers = -1 }, "Config.Posix.Transfers is -1"},
		"no mount":        {"Ds3fs", func(c *Config) {}, "Config.Ds3fs.Mount is empty"},
		"no segment":      {"Segment", func(c *Config) { c.Segment = nil }, "Config.Segment.Dir is empty"},
		"no capacity":     {"Segment", func(c *Config) { c.Segment.CapacityBytes = 0 }, "Config.Segment.CapacityBytes is 0"},
		"no pages":        {"Pages", func(c *Config) {}, "Config.Pages.File is empty"},
		"a shared name":   {"Cache|Empty", func(c *Config) { c.Cache.SharedName = "x" }, "SharedName is set without Shared"},
		"speed":           {"Empty", func(c *Config) { c.Speed = &Speed{Latency: -1} }, "Config.Speed is negative"},
		"no speed":        {"Empty", func(c *Config) { c.Speed = &Speed{BytesPerSecond: math.NaN()} }, "Config.Speed is negative or not a number"},
		"no fraction":     {"Segment", func(c *Config) { c.Segment.CarryFraction = math.NaN() }, "CarryFraction is not a number"},
		"too many":        {"Posix", func(c *Config) { c.Posix.WaitingTransfers = math.MaxInt }, "Config.Posix.WaitingTransfers is 9223372036854775807; it must be from 0 to"},
		"ring entries":    {"Ds3fs", func(c *Config) { c.Ds3fs = &Ds3fsOptions{RingOptions: RingOptions{RingEntries: -3}} }, "Config.Ds3fs.RingEntries is -3"},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{Namespace: namespace, Layout: testLayout}
			switch {
			case c.chain == "Posix":
				config.Posix = &PosixOptions{Dirs: []string{t.TempDir()}}
			case strings.HasSuffix(c.chain, "Segment"):
				config.Segment = &SegmentOptions{Dir: t.TempDir(), CapacityBytes: 1 << 20}
			}
			if strings.HasPrefix(c.chain, "Cache") {
				config.Cache = &CacheOptions{CapacityBytes: 1 << 20}
			}
			c.change(&config)
			s, err := Open(c.chain, config)
			if err == nil {
				t.Fatal("opened", s.Close())
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

// The log names the chain and each damaged block once. Without a Logger nothing is
// logged.
func TestLogger(t *testing.T) {
	var log strings.Builder
	dir := t.TempDir()
	s := openTest(t, "Posix", func(c *Config) {
		c.Posix.Dirs = []string{dir}
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	block := testKeys(1)
	save(t, s, block...)
	damaged := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == block[0].String() {
			damaged++
			return os.WriteFile(path, make([]byte, testLayout.BlockBytes), 0o600)
		}
		return err
	})
	if err != nil || damaged != 1 {
		t.Fatal(damaged, err)
	}
	task, err := s.Load(t.Context(), testLayout.ByBlock(block, buffers(block)))
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(t.Context()); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	var found *CorruptError
	if err := task.Err(); !errors.As(err, &found) || found.Key != block[0] {
		t.Errorf("%v does not name the block", err)
	}
	text := log.String()
	if strings.Count(text, `msg="opened block store" chain=Posix`) != 1 || strings.Count(text, `msg="damaged block" store=Posix key=`+block[0].String()) != 1 {
		t.Error(text)
	}
}

func TestLatency(t *testing.T) {
	var h kv.Histogram
	if l := Latency(h.Latency()); l.Mean() != 0 || l.Quantile(0.5) != 0 {
		t.Errorf("%+v", l)
	}
	for range 98 {
		h.Add(40 * time.Microsecond)
	}
	h.Add(time.Millisecond)
	h.Add(time.Hour)
	l := Latency(h.Latency())
	for share, want := range map[float64]time.Duration{0: LatencyBound(1), 0.5: LatencyBound(1), 0.98: LatencyBound(1), 0.99: LatencyBound(5), 1: LatencyBound(20)} {
		if got := l.Quantile(share); got != want {
			t.Errorf("quantile %v: %v; want %v", share, got, want)
		}
	}
	if want := (98*40*time.Microsecond + time.Millisecond + time.Hour) / 100; l.Mean() != want || l.Count != 100 {
		t.Errorf("%v of %d; want %v", l.Mean(), l.Count, want)
	}
}

// When batches are done, their counts in flight are 0 again and their times are counted.
func TestStatsOfWhatIsInFlight(t *testing.T) {
	s := openTest(t, "Cache|Posix", func(c *Config) { c.Speed = nil })
	blocks := testKeys(10)
	save(t, s, blocks...)
	task, err := s.Load(t.Context(), testLayout.ByBlock(blocks, buffers(blocks)))
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	stats := s.Stats()
	for st := &stats; st != nil; st = st.Next {
		if st.WaitingBatches+st.LoadingBatches+st.LoadingShards+st.SavingBatches+st.SavingShards != 0 {
			t.Errorf("%s has something in flight: %+v", st.Store, st)
		}
	}
	if stats.LoadBatch.Count != 1 || stats.LoadShard.Count != 20 || stats.LoadBatch.Sum > stats.LoadShard.Sum || stats.Next == nil || stats.Next.SaveShard.Count != 20 {
		t.Errorf("%+v", stats)
	}
}

// The largest numbers that are taken open a chain, and take no memory or threads that are
// not used.
func TestLargestNumbersOpen(t *testing.T) {
	for chain, c := range map[string]Config{
		"Cache|Posix": {
			Cache: &CacheOptions{CapacityBytes: 1 << 20, Copiers: mostThreads, WaitingBlocks: mostOf},
			Posix: &PosixOptions{Dirs: []string{t.TempDir()}, Transfers: mostThreads, WaitingTransfers: mostOf, AcceptedShards: mostOf},
		},
		"Segment": {Segment: &SegmentOptions{Dir: t.TempDir(), CapacityBytes: 1 << 20, Transfers: mostThreads, WaitingTransfers: mostOf}},
	} {
		c.Namespace, c.Layout.BlockBytes, c.Timeout = namespace, 4096, mostTimeout
		s, err := Open(chain, c)
		if err != nil {
			t.Fatal(err)
		}
		k := []Key{{1}}
		task, err := s.Save(t.Context(), s.Layout().ByBlock(k, [][]byte{make([]byte, 4096)}))
		if err == nil {
			err = task.Wait(t.Context())
		}
		if n, found := s.LookupPrefix(t.Context(), k); err != nil || n != 1 || found != nil {
			t.Errorf("%s: %v, %d, %v", chain, err, n, found)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
