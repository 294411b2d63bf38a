package rtpfiles

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/layout/kvcm"
	"github.com/kv3fs/kv3fs/internal/layout/rtpllm"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// span is some blocks of the tests' prompt.
type span struct{ first, n int }

// has checks that a directory has the files of these spans, whole, and no other.
func has(t testing.TB, root string, path func(first, n int) string, l kv.Layout, want ...span) {
	t.Helper()
	names := map[string]span{}
	for _, s := range want {
		names[filepath.Base(path(s.first, s.n))] = s
	}
	dir := filepath.Dir(filepath.Join(root, path(0, 1)))
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		s, ok := names[e.Name()]
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case !ok:
			t.Errorf("there is a file %s", e.Name())
		default:
			delete(names, e.Name())
			if raw, err := os.ReadFile(filepath.Join(dir, e.Name())); err != nil || !bytes.Equal(raw, content(l, s.first, s.n)) {
				t.Errorf("the file of %v has other bytes: %v", s, err)
			}
		}
	}
	for _, s := range names {
		t.Errorf("there is no file of %v", s)
	}
}

// match returns how many blocks RTP-LLM takes for stored of a prompt of so many: it looks for the
// last item, then for the longest prefix of whole items by bisection, then for the longest item
// that begins after it.
func match(t testing.TB, root string, blocks, most int) int {
	there := func(first, n int) bool {
		info, err := os.Stat(filepath.Join(root, itemPath(first, n)))
		return err == nil && info.Size() > 0
	}
	items := (blocks + most - 1) / most
	lastItem := (items - 1) * most
	if there(lastItem, blocks-lastItem) {
		return blocks
	}
	left, right := 0, items-2
	for left <= right {
		if mid := left + (right-left)/2; there(mid*most, most) {
			left = mid + 1
		} else {
			right = mid - 1
		}
	}
	first := (right + 1) * most
	for n := min(most, blocks-first); n > 0; n-- {
		if there(first, n) {
			return first + n
		}
	}
	return first
}

func saveShards(t testing.TB, s *Store, shards []kv.Shard) {
	t.Helper()
	task, err := s.Save(t.Context(), shards)
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func flush(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A prompt becomes the items that RTP-LLM would write for it, also where it is extended, and
// every block is found by its key alone.
func TestItemsOfAPrompt(t *testing.T) {
	root := t.TempDir()
	s := openTest(t, "RtpLlm", Options{Root: root})
	count(t, s, 0, 40, 0)
	save(t, s, 0, 40)
	whole := []span{{0, 16}, {16, 16}, {32, 8}}
	has(t, root, itemPath, testLayout, whole...)
	for _, n := range []int{1, 15, 16, 17, 32, 33, 39, 40, 45} {
		want := n / 16 * 16 // a prompt that ends within an item finds it only if that ends there, too
		if n >= 40 {
			want = 40
		}
		if got := match(t, root, n, 16); got != want {
			t.Errorf("RTP-LLM finds %d of %d blocks, want %d", got, n, want)
		}
	}
	hits(t, openTest(t, "RtpLlm", Options{Root: root}), 0, 40, true)

	count(t, s, 0, 45, 40)
	save(t, s, 40, 5)
	other := openTest(t, "RtpLlm", Options{Root: root}) // finds them before they are in an item
	count(t, other, 0, 46, 45)
	hits(t, other, 0, 45, true)
	flush(t, s)
	has(t, root, itemPath, testLayout, append(whole, span{32, 13})...)
	if a, b := match(t, root, 45, 16), match(t, root, 40, 16); a != 45 || b != 40 {
		t.Errorf("RTP-LLM finds %d of 45 blocks and %d of 40", a, b)
	}
	hits(t, other, 0, 45, true)
	hits(t, openTest(t, "RtpLlm", Options{Root: root}), 0, 45, true)

	// The rest of the item, and more.
	count(t, other, 0, 70, 45)
	save(t, other, 45, 20)
	flush(t, other)
	has(t, root, itemPath, testLayout, append(whole, span{32, 13}, span{32, 16}, span{48, 16}, span{64, 1})...)
	if n := match(t, root, 65, 16); n != 65 {
		t.Errorf("RTP-LLM finds %d of 65 blocks", n)
	}
	// Nothing is written again.
	save(t, s, 0, 65)
	flush(t, s)
	has(t, root, itemPath, testLayout, append(whole, span{32, 13}, span{32, 16}, span{48, 16}, span{64, 1})...)
	if stats := other.Stats(); stats.UnverifiedShards > 0 || stats.CorruptBlocks > 0 {
		t.Errorf("%+v", stats)
	}
}

// However a prompt is cut into batches, it becomes the same items.
func TestPromptsInPieces(t *testing.T) {
	layers := func(t *testing.T, s *Store, first, n int) {
		raw := content(testLayout, first, n)
		shards := testLayout.ByLayer(prompt(first, n), slices.Collect(slices.Chunk(raw, int(testLayout.BlockBytes))))
		for layer := range slices.Chunk(shards, n) {
			saveShards(t, s, layer)
		}
	}
	for name, saved := range map[string]func(t *testing.T, s *Store, root string){
		"block by block": func(t *testing.T, s *Store, root string) {
			for i := range 40 {
				save(t, s, i, 1)
			}
		},
		"in odd pieces": func(t *testing.T, s *Store, root string) {
			for first := 0; first < 40; first += 7 {
				save(t, s, first, min(7, 40-first))
			}
		},
		"layer by layer": func(t *testing.T, s *Store, root string) { layers(t, s, 0, 40) },
		"layer by layer, in two": func(t *testing.T, s *Store, root string) {
			layers(t, s, 0, 20)
			layers(t, s, 20, 20)
		},
		"the end first": func(t *testing.T, s *Store, root string) {
			for _, first := range []int{30, 20, 10, 0} {
				save(t, s, first, 10)
				if n := match(t, root, 40, 16); first > 0 && n > 0 {
					t.Errorf("RTP-LLM finds %d blocks before the first is there", n)
				}
			}
		},
		"at once": func(t *testing.T, s *Store, root string) {
			var wg sync.WaitGroup
			for first := 0; first < 40; first += 5 {
				wg.Go(func() { save(t, s, first, 5) })
			}
			wg.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			s := openTest(t, "RtpLlm", Options{Root: root})
			count(t, s, 0, 40, 0) // this is how the store learns the order
			saved(t, s, root)
			hits(t, openTest(t, "RtpLlm", Options{Root: root}), 0, 40, true)
			flush(t, s)
			has(t, root, itemPath, testLayout, span{0, 16}, span{16, 16}, span{32, 8})
			count(t, s, 0, 41, 40)
			hits(t, s, 0, 40, true)
			hits(t, openTest(t, "RtpLlm", Options{Root: root}), 0, 40, true)
		})
	}
}

// Close does what a Flush does.
func TestCloseCompletesItems(t *testing.T) {
	root := t.TempDir()
	s := openTest(t, "RtpLlm", Options{Root: root})
	count(t, s, 0, 20, 0)
	save(t, s, 0, 5)
	save(t, s, 5, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	has(t, root, itemPath, testLayout, span{0, 8})
}

// Prompts that part within an item have an item each.
func TestPromptsThatPart(t *testing.T) {
	root := t.TempDir()
	s := openTest(t, "RtpLlm", Options{Root: root})
	save(t, s, 0, 12)
	l := s.Layout()
	branch := append(prompt(0, 10), prompt(100, 4)...)
	if n, err := s.LookupPrefix(t.Context(), branch); n != 10 || err != nil {
		t.Errorf("finds %d, %v", n, err)
	}
	raw := content(l, 100, 4)
	saveShards(t, s, l.ByBlock(prompt(100, 4), slices.Collect(slices.Chunk(raw, int(l.BlockBytes)))))
	flush(t, s)
	both := filepath.Join(root, testDir.Path(), rtpllm.Item{First: number(0), Last: number(103)}.Name())
	if got, err := os.ReadFile(both); err != nil || !bytes.Equal(got, append(content(l, 0, 10), raw...)) {
		t.Errorf("the second prompt's item: %v", err)
	}
	hits(t, s, 0, 12, true)
	hits(t, s, 100, 4, true)
}

// KVCM's files have what one batch lacked, and a short last one.
func TestFilesOfABatch(t *testing.T) {
	root := t.TempDir()
	s := openTest(t, "Kvcm", Options{Root: root})
	save(t, s, 3, 1)
	save(t, s, 0, 40)
	want := []span{{3, 1}}
	// 39 blocks were lacking: 0, 1, 2, 4 ... 39.
	some := append(numbers(0, 3), numbers(4, 36)...)
	dir := filepath.Join(root, testInstance, testSpec)
	for chunk := range slices.Chunk(some, 16) {
		info, err := os.Stat(filepath.Join(dir, kvcm.Name(testInstance, testSpec, chunk...)))
		if err != nil || info.Size() != int64(len(chunk))*testLayout.BlockBytes {
			t.Errorf("a file of %d blocks: %v", len(chunk), err)
		}
	}
	if entries, err := filepath.Glob(filepath.Join(dir, "[^.]*")); err != nil || len(entries) != 4 {
		t.Errorf("there are %d files, %v; want 4 with %v", len(entries), err, want)
	}
	hits(t, s, 0, 40, true)
	fresh := openTest(t, "Kvcm", Options{Root: root})
	hits(t, fresh, 0, 40, true)
	count(t, fresh, 0, 41, 40)
}

// Of two writers of an item with other bytes, one wins whole, and both find its blocks.
func TestTwoWritersOfAnItem(t *testing.T) {
	each(t, func(t *testing.T, name, root string, _ func(first, n int) string) {
		l := testLayout
		a, b := openTest(t, name, Options{Root: root}), openTest(t, name, Options{Root: root})
		for round := range 8 {
			blocks := prompt(100*round, 16)
			var wg sync.WaitGroup
			for w, s := range []*Store{a, b} {
				raw := bytes.Repeat([]byte{byte(w + 1)}, 16*int(l.BlockBytes))
				wg.Go(func() {
					saveShards(t, s, l.ByBlock(blocks, slices.Collect(slices.Chunk(raw, int(l.BlockBytes)))))
				})
			}
			wg.Wait()
			var first byte
			for _, s := range []*Store{a, b, openTest(t, name, Options{Root: root})} {
				got := make([]byte, 16*l.BlockBytes)
				task, err := s.Load(t.Context(), l.ByBlock(blocks, slices.Collect(slices.Chunk(got, int(l.BlockBytes)))))
				if err == nil {
					err = task.Wait(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				for i, c := range got {
					if first == 0 {
						first = c
					}
					if c != first {
						t.Fatalf("round %d: byte %d is %d, and others are %d", round, i, c, first)
					}
				}
			}
		}
	})
}

// A block that is deleted takes its item along, and no other.
func TestDeleteOfItems(t *testing.T) {
	each(t, func(t *testing.T, name, root string, path func(first, n int) string) {
		s := openTest(t, name, Options{Root: root})
		save(t, s, 0, 40)
		if err := s.Delete(t.Context(), prompt(20, 1)); err != nil {
			t.Fatal(err)
		}
		has(t, root, path, testLayout, span{0, 16}, span{32, 8})
		for _, s := range []*Store{s, openTest(t, name, Options{Root: root})} {
			hits(t, s, 0, 16, true)
			hits(t, s, 16, 16, false)
			hits(t, s, 32, 8, true)
		}
		var listed int
		for key, err := range s.Keys(t.Context()) {
			if err != nil || !slices.Contains(append(prompt(0, 16), prompt(32, 8)...), key) {
				t.Errorf("lists %s, %v", key, err)
			}
			listed++
		}
		if listed != 24 {
			t.Errorf("lists %d blocks, want 24", listed)
		}
		save(t, s, 0, 40)
		has(t, root, path, testLayout, span{0, 16}, span{16, 16}, span{32, 8})
		if err := s.Delete(t.Context(), prompt(0, 40)); err != nil {
			t.Fatal(err)
		}
		has(t, root, path, testLayout)
		hits(t, s, 0, 40, false)
	})
}

// A file that cannot be stored is stored for none of its blocks. What comes after it is not in
// an item, so that RTP-LLM does not take it for stored.
func TestItemsThatCannotBeStored(t *testing.T) {
	root := t.TempDir()
	s := openTest(t, "RtpLlm", Options{Root: root})
	// A directory in the place of the second item.
	if err := os.MkdirAll(filepath.Join(root, itemPath(16, 16), "x"), 0o777); err != nil {
		t.Fatal(err)
	}
	l := s.Layout()
	task, err := s.Save(t.Context(), l.ByBlock(prompt(0, 48), slices.Collect(slices.Chunk(content(l, 0, 48), int(l.BlockBytes)))))
	if err != nil {
		t.Fatal(err)
	}
	<-task.Done()
	for i := range task.Len() {
		block := i / l.Shards()
		if err, _ := task.Result(i); (err != nil) != (block/16 == 1) {
			t.Errorf("a shard of block %d: %v", block, err)
		}
	}
	flush(t, s)
	other := openTest(t, "RtpLlm", Options{Root: root})
	hits(t, other, 0, 16, true)
	hits(t, other, 16, 16, false)
	hits(t, other, 32, 16, true)
	if err := os.RemoveAll(filepath.Join(root, itemPath(16, 16))); err != nil {
		t.Fatal(err)
	}
	if n := match(t, root, 48, 16); n != 16 {
		t.Errorf("RTP-LLM finds %d blocks", n)
	}
	save(t, s, 0, 48)
	flush(t, s)
	has(t, root, itemPath, testLayout, span{0, 16}, span{16, 16}, span{32, 16})
}

// An item that is complete needs no Flush.
func TestFullItemsNeedNoFlush(t *testing.T) {
	root := t.TempDir()
	s := openTest(t, "RtpLlm", Options{Root: root})
	count(t, s, 0, 20, 0)
	for _, first := range []int{8, 0} {
		save(t, s, first, 8)
	}
	eventually(t, "the item is there", func() bool { return match(t, root, 16, 16) == 16 })
	hits(t, s, 0, 16, true)
}

// LookupPrefix tells the order better than a Save does.
func TestLookupsCorrectTheOrder(t *testing.T) {
	root := t.TempDir()
	s := openTest(t, "RtpLlm", Options{Root: root})
	save(t, s, 4, 4) // seems to begin a prompt
	count(t, s, 0, 16, 0)
	save(t, s, 0, 4)
	save(t, s, 8, 8)
	flush(t, s)
	has(t, root, itemPath, testLayout, span{4, 4}, span{0, 16})
	hits(t, s, 0, 16, true)
}
