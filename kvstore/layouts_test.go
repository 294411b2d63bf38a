package kvstore

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/classify"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// classified are the files below a directory.
type classified map[string]classify.File

// classifyAll walks a tree as a keeper does.
func classifyAll(t *testing.T, root string) classified {
	t.Helper()
	all := classified{}
	var walk func(dir string, above classify.Marks)
	walk = func(dir string, above classify.Marks) {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		in := classify.Context{Above: above}
		for _, e := range entries {
			in.Here |= classify.MarkOf(e.Name())
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch {
			case e.IsDir():
				walk(path, in.Here)
			case e.Type() == fs.FileMode(0):
				f := classify.Classify(path, in)
				if f.Owner == classify.Unknown {
					f = classify.ByHead(path, headOf(t, filepath.Join(root, path)))
				}
				all[path] = f
			}
		}
	}
	walk("", 0)
	return all
}

func headOf(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := make([]byte, classify.HeadBytes)
	n, _ := f.Read(head)
	return head[:n]
}

// owners counts the files of each owner, those of the daemon apart.
func (c classified) owners(temporary bool) map[classify.Owner]int {
	n := map[classify.Owner]int{}
	for _, f := range c {
		if f.Temp == temporary && f.Owner != classify.Daemon {
			n[f.Owner]++
		}
	}
	return n
}

// check fails for what no file of kv3fs's may be: unknown, or one whose entry or root is somewhere
// else.
func (c classified) check(t *testing.T) {
	t.Helper()
	for path, f := range c {
		switch {
		case f.Owner == classify.Unknown:
			t.Errorf("%s is unknown", path)
		case !slices.Contains(f.Parts(), path):
			t.Errorf("%s is none of its parts %q", path, f.Parts())
		case f.Root != "" && !strings.HasPrefix(path, f.Root+"/"):
			t.Errorf("%s is not below %s", path, f.Root)
		}
		for _, part := range f.Parts() {
			if other, ok := c[part]; !ok || other.Entry != f.Entry || other.Owner != f.Owner {
				t.Errorf("%s has the part %s, which is %+v", path, part, other)
			}
		}
	}
}

// Every file that a store makes is known: the blocks, those that are being written, and what it
// keeps beside them.
func TestFilesOfAllStoresAreClassified(t *testing.T) {
	socket := filepath.Join(daemontest.NewDir(t), "pages.sock")
	d := daemontest.Serve(t, "--pages-listen", "unix:"+socket)
	layout := Layout{BlockBytes: 3 * 4096, ShardBytes: 4096}
	numbers := []Key{keys.Int64Key(-7), keys.Int64Key(1 << 60), keys.Int64Key(33), keys.Int64Key(9)}
	digests := []Key{{1, 2, 3}, {0xff, 4}, {0, 0, 0, 1}, {9}}
	chunks := &LMCacheHeader{MemoryFormat: 4, Tensors: []LMCacheTensor{{DType: "uint8", Shape: []int{int(layout.BlockBytes)}}}}
	type counts = map[classify.Owner]int
	for name, c := range map[string]struct {
		chain string
		set   func(*Config, string)
		keys  []Key

		mount bool   // it takes one
		want  counts // of files
		temp  counts // of those while one more block is being written
	}{
		"Posix": {"Posix", func(c *Config, dir string) { c.Posix = &PosixOptions{Dirs: []string{dir}} },
			digests, false, counts{classify.Posix: 4, classify.Checksums: 2}, counts{classify.BlockStore: 1}},
		"Posix without digits": {"Cache|Posix", func(c *Config, dir string) { c.Posix = &PosixOptions{Dirs: []string{dir}, KeyDigits: OneDir} },
			digests, false, counts{classify.Posix: 4, classify.Checksums: 2}, nil},
		"Ds3fs": {"Ds3fs", func(c *Config, _ string) { c.Ds3fs = &Ds3fsOptions{Mount: d.Mount} },
			digests, true, counts{classify.Ds3fs: 4, classify.Checksums: 2}, counts{classify.Ds3fs: 1}},
		"Segment": {"Segment", func(c *Config, dir string) {
			c.Segment = &SegmentOptions{Dir: dir, CapacityBytes: 4 << 20, SegmentBytes: 1 << 20}
		},
			digests, false, counts{classify.Segments: 5}, counts{}},
		"Pages": {"Pages", func(c *Config, dir string) {
			c.Pages = &PagesOptions{URL: "unix:" + socket, File: dir, CapacityBytes: 1 << 20}
		}, digests, false, counts{classify.Pages: 1}, counts{}},
		"chunks of numbers": {"LMCache", func(c *Config, dir string) {
			c.LMCache = &LMCacheOptions{BasePaths: []string{dir}, DType: "uint8", Header: chunks}
		},
			numbers, false, counts{classify.LMCache: 4, classify.Checksums: 2}, counts{classify.BlockStore: 1}},
		"chunks with older names": {"LMCache", func(c *Config, dir string) {
			c.LMCache = &LMCacheOptions{BasePaths: []string{dir}, DType: "uint8", Header: chunks, IDs: digestIDs{}, Names: LMCacheNamesUntyped, RelativeTmpDir: "tmp"}
		}, digests, false, counts{classify.LMCache: 4, classify.Checksums: 2}, counts{classify.BlockStore: 1}},
		"objects": {"LMCache", func(c *Config, dir string) {
			c.LMCache = &LMCacheOptions{BasePaths: []string{dir}, IDs: digestIDs{}, Objects: &LMCacheObjects{KVRank: 0x02010201, Salt: "s"}, HashSubdirLevels: 2}
		}, digests, false, counts{classify.LMCacheObject: 4, classify.Checksums: 2}, counts{classify.BlockStore: 1}},
		"pairs of numbers": {"Gds", func(c *Config, dir string) {
			c.Gds = &GdsOptions{Dirs: []string{dir}, Shape: []int64{layout.BlockBytes}, MemoryFormat: 4}
		},
			numbers, false, counts{classify.GDS: 8, classify.Checksums: 2}, counts{classify.BlockStore: 1}},
		"pairs of digests": {"Gds", func(c *Config, dir string) {
			c.Gds = &GdsOptions{Dirs: []string{dir}, Shape: []int64{layout.BlockBytes}, MemoryFormat: 4, IDs: digestIDs{}}
		}, digests, false, counts{classify.GDS: 8, classify.Checksums: 2}, counts{classify.BlockStore: 1}},
		"items": {"RtpLlm", func(c *Config, dir string) {
			c.RtpLlm = &RtpLlmOptions{Root: dir, Biz: "a/b", Checkpoint: "/c", DType: 14, ItemBlocks: 2}
		}, numbers, false, counts{classify.RTPLLM: 2, classify.Checksums: 6}, nil},
		"blocks of other keys": {"RtpLlm", func(c *Config, dir string) {
			c.RtpLlm = &RtpLlmOptions{Root: dir, Biz: "a", Checkpoint: "/c", DType: 14}
		},
			digests, false, counts{classify.RTPLLM: 4, classify.Checksums: 4}, counts{classify.BlockStore: 1}},
		"files of the manager": {"Kvcm", func(c *Config, dir string) { c.Kvcm = &KvcmOptions{Root: dir, Instance: "17", Spec: "tp0_F0"} },
			numbers, false, counts{classify.KVCM: 4, classify.Checksums: 2}, counts{classify.BlockStore: 1}},
		"another spec, several blocks": {"Kvcm", func(c *Config, dir string) {
			c.Kvcm = &KvcmOptions{Root: dir, Instance: "17", Spec: "full", FileBlocks: 4}
		}, numbers, false, counts{classify.KVCM: 1, classify.Checksums: 6}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "models", "x")
			if c.chain == "RtpLlm" || c.chain == "Kvcm" {
				dir = root
			}
			if c.mount {
				root = d.Data
			}
			if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
				t.Fatal(err)
			}
			config := Config{Namespace: keys.Namespace{Model: "kv3fs/" + name, BlockTokens: 16, DType: "uint8"}, Layout: layout}
			if strings.HasPrefix(c.chain, "Cache") {
				config.Cache = &CacheOptions{CapacityBytes: 1 << 20}
			}
			c.set(&config, dir)
			s, err := Open(c.chain, config)
			if err != nil {
				t.Fatal(err)
			}
			store := func(shards []Shard) {
				t.Helper()
				task, err := s.Save(t.Context(), shards)
				if err == nil {
					err = task.Wait(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			bufs := make([][]byte, len(c.keys))
			for i := range bufs {
				bufs[i] = make([]byte, layout.BlockBytes)
			}
			store(layout.ByBlock(c.keys, bufs))
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c.temp != nil { // all but one shard of another block
				another := keys.Int64Key(77)
				if c.keys[0] == digests[0] {
					another = Key{77}
				}
				store(layout.ByBlock([]Key{another}, bufs[:1])[1:])
				for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
					during := classifyAll(t, root)
					during.check(t)
					got := during.owners(true)
					if sameCounts(got, c.temp) {
						break
					}
					// A file that was given up may not be gone yet: 2 were seen once.
					if time.Now().After(end) {
						t.Fatalf("while a block is being written, these are temporary: %v, want %v", got, c.temp)
					}
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			after := classifyAll(t, root)
			after.check(t)
			if got := after.owners(false); !sameCounts(got, c.want) {
				t.Errorf("the files are of %v, want %v", got, c.want)
				for path, f := range after {
					t.Log(path, f.Owner)
				}
			}
		})
	}
}

func sameCounts(a, b map[classify.Owner]int) bool {
	for _, o := range classify.Owners() {
		if a[o] != b[o] {
			return false
		}
	}
	return true
}
