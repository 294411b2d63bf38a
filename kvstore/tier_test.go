package kvstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// hostConfig is a chain of three on a host that has a directory of its own.
func hostConfig(own string) Config {
	return Config{
		Namespace: keys.Namespace{Model: "kv3fs/test", BlockTokens: 16}, Layout: testLayout,
		Cache:   &CacheOptions{CapacityBytes: 64 * testLayout.BlockBytes},
		Segment: &SegmentOptions{Dir: own, CapacityBytes: 16 << 20, SegmentBytes: 1 << 20},
	}
}

// A host that has just joined finds what others have saved through chains of three, and its
// own disk then has it, too: the next process finds it there.
func TestChainsOfThree(t *testing.T) {
	d := daemontest.Serve(t)
	for far, set := range map[string]func(*Config, string){
		"Posix": func(c *Config, dir string) { c.Posix = &PosixOptions{Dirs: []string{dir}} },
		"Ds3fs": func(c *Config, _ string) { c.Ds3fs = &Ds3fsOptions{Mount: d.Mount, Rings: 1} },
	} {
		t.Run(far, func(t *testing.T) {
			dir := t.TempDir()
			openHost := func(name string, change func(*Config)) *Store {
				c := hostConfig(filepath.Join(dir, name))
				set(&c, filepath.Join(dir, "far"))
				if change != nil {
					change(&c)
				}
				s, err := Open("Cache|Segment|"+far, c)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			closing := func(s *Store) {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			first := openHost("a", nil)
			save(t, first, testKeys(20)...)
			closing(first)

			second := openHost("b", nil)
			if n, err := second.LookupPrefix(t.Context(), testKeys(25)); n != 20 || err != nil {
				t.Fatalf("%d blocks are found, %v", n, err)
			}
			load(t, second, testKeys(20)...)
			tiers := second.Stats()
			if near := tiers.Next; tiers.Store != "Cache" || near.Store != "Segment" || near.Next.Store != far || near.Next.Next != nil ||
				near.PassedBytes != 20*testLayout.BlockBytes || near.Next.LoadedBytes != near.PassedBytes {
				t.Errorf("%+v\n%+v", near, near.Next)
			}
			for end := time.Now().Add(time.Minute); second.Stats().Next.FilledBlocks < 20; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("not all blocks are kept")
				}
			}
			closing(second)

			third := openHost("b", func(c *Config) { c.WritePolicy = WriteThrough })
			load(t, third, testKeys(20)...)
			if near := third.Stats().Next; near.PassedBytes != 0 || near.LoadedBytes != 20*testLayout.BlockBytes {
				t.Errorf("what was kept is loaded from far: %+v", near)
			}
			// With WriteThrough, a save is done when the last store has it.
			more := testKeys(30)[20:]
			task, err := third.Save(t.Context(), testLayout.ByLayer(more, buffers(more)))
			if err == nil {
				err = task.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			fourth := openHost("c", nil)
			if n, err := fourth.LookupPrefix(t.Context(), testKeys(40)); n != 30 || err != nil {
				t.Errorf("%d blocks are found, %v", n, err)
			}
			load(t, fourth, more...)
			closing(third)
			closing(fourth)
		})
	}
}

// A cache that writes through says what the next store said.
func TestCacheWritesThrough(t *testing.T) {
	dir := t.TempDir()
	s, err := Open("Cache|Posix", Config{
		Namespace: keys.Namespace{Model: "kv3fs/test", BlockTokens: 16}, Layout: testLayout, WritePolicy: WriteThrough,
		Cache: &CacheOptions{CapacityBytes: 64 * testLayout.BlockBytes}, Posix: &PosixOptions{Dirs: []string{dir}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for n := range 50 {
		k := testKeys(50)[n : n+1]
		task, err := s.Save(t.Context(), testLayout.ByBlock(k, buffers(k)))
		if err == nil {
			err = task.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if next := s.Stats().Next; next.SavedShards != int64((n+1)*testLayout.Shards()) {
			t.Fatalf("after %d saves Posix has stored %d shards", n+1, next.SavedShards)
		}
	}
}

// Files configure chains of three; Segment needs a place of its own.
func TestFilesOfThree(t *testing.T) {
	const file = "store_pipeline: Cache|Segment|Ds3fs\nnamespace: {model: m, block_tokens: 16}\nblock_size: 8192\nstorage_backends: /mnt/3fs\nsegment_capacity_gb: 1\nwrite_policy: through\n"
	u, notes, err := ReadConfig([]byte(file + "segment_dir: /var/kv\nsegment_waiting_blocks: 7\nsegment_fill_bytes: 1048576\n"))
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	c, err := u.Config(u.StorePipeline)
	if err != nil {
		t.Fatal(err)
	}
	if c.Segment.Dir != "/var/kv" || c.Ds3fs.Mount != "/mnt/3fs" || c.WritePolicy != WriteThrough || c.Segment.WaitingBlocks != 7 || c.Segment.FillBytes != 1<<20 {
		t.Errorf("%+v, %+v", c.Segment, c.Ds3fs)
	}
	if u, _, err = ReadConfig([]byte(file)); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Config(u.StorePipeline); err == nil || !strings.Contains(err.Error(), "segment_dir is missing") {
		t.Errorf("without segment_dir: %v", err)
	}
	u.WritePolicy = "later"
	if _, err := u.Config("Cache|Ds3fs"); err == nil || !strings.Contains(err.Error(), "use back or through") {
		t.Errorf("a policy that there is not: %v", err)
	}
}

// The directories of a chain of three must differ.
func TestNearIsNotFar(t *testing.T) {
	dir := t.TempDir()
	c := hostConfig(dir)
	c.Posix = &PosixOptions{Dirs: []string{dir}}
	if s, err := Open("Cache|Segment|Posix", c); err == nil {
		_ = s.Close()
		t.Error("one directory for both is taken")
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

// While the 3FS hangs, what is on the host's own disk is found and loaded, and saves succeed.
// When it answers again, what was saved meanwhile gets there.
func TestFarDaemonHangs(t *testing.T) {
	d := daemontest.Serve(t)
	c := hostConfig(t.TempDir())
	c.Cache, c.Timeout = nil, 4*time.Second
	c.Ds3fs = &Ds3fsOptions{Mount: d.Mount, Rings: 1}
	s, err := Open("Segment|Ds3fs", c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	save(t, s, testKeys(20)...)
	d.Freeze(t)
	thaw := sync.OnceFunc(func() { d.Thaw(t) })
	defer thaw()
	if n, err := s.LookupPrefix(t.Context(), testKeys(25)); n != 20 || err != nil {
		t.Errorf("%d blocks are found, %v", n, err)
	}
	load(t, s, testKeys(20)...)
	more := testKeys(30)[20:]
	task, err := s.Save(t.Context(), testLayout.ByBlock(more, buffers(more)))
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	load(t, s, testKeys(30)...)
	if err := s.Flush(t.Context()); !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "Ds3fs") {
		t.Errorf("Flush: %v", err)
	}
	thaw()
	for end := time.Now().Add(time.Minute); s.Stats().UnsentBlocks > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d blocks still wait", s.Stats().UnsentBlocks)
		}
	}
	far, err := Open("Ds3fs", Config{Namespace: c.Namespace, Layout: c.Layout, Ds3fs: c.Ds3fs})
	if err != nil {
		t.Fatal(err)
	}
	load(t, far, testKeys(30)...)
	if err := far.Close(); err != nil {
		t.Error(err)
	}
}
