package gdsfiles

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/layout/gds"
	"github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// chunksIn returns the files of chunks in a root, by their path there.
func chunksIn(t *testing.T, root string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && path != root && d.Name()[0] == '.' {
				return fs.SkipDir
			}
			return err
		}
		rel, _ := filepath.Rel(root, path)
		all[rel], err = os.ReadFile(path)
		return err
	}))
	return all
}

// bothWays checks that what the replay of LMCache writes is listed, found, loaded and deleted, and
// that what the store writes has the same names and bytes and is read by the replay. chunk is how
// LMCache sees a block.
func bothWays(t *testing.T, o Options, all []kv.Key, chunk func(kv.Key) map[string]any) {
	t.Helper()
	ours, theirs := t.TempDir(), t.TempDir()
	var writes, reads []map[string]any
	for i, key := range all {
		write, read := maps.Clone(chunk(key)), maps.Clone(chunk(key))
		maps.Copy(write, map[string]any{"do": "write", "root": theirs, "payload": base64.StdEncoding.EncodeToString(content(key)), "cufile": i%2 == 0})
		maps.Copy(read, map[string]any{"do": "read", "roots": []string{ours}})
		writes, reads = append(writes, write), append(reads, read)
	}
	replay(t, writes...)
	written := chunksIn(t, theirs)

	o.Dirs = []string{theirs}
	s := open(t, o)
	want := slices.Clone(all)
	slices.SortFunc(want, func(a, b kv.Key) int { return bytes.Compare(a[:], b[:]) })
	if have := listed(t, s); !slices.Equal(have, want) {
		t.Errorf("listed: %v, want %v", have, want)
	}
	for _, key := range all {
		if err := load(t, s, key); err != nil || !has(t, s, key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if st := s.Stats(); st.UnverifiedShards != int64(2*len(all)) || st.CorruptBlocks > 0 {
		t.Errorf("%+v", st)
	}
	save(t, s, all...) // there is nothing to write
	if now := chunksIn(t, theirs); len(now) != len(written) {
		t.Errorf("%d files became %d", len(written), len(now))
	}
	must(t, s.Delete(t.Context(), all))
	if left := chunksIn(t, theirs); len(left) > 0 {
		t.Errorf("left: %v", slices.Collect(maps.Keys(left)))
	}

	o.Dirs = []string{ours}
	s = open(t, o)
	save(t, s, all...)
	have := chunksIn(t, ours)
	for name, raw := range written {
		if !bytes.Equal(have[name], raw) {
			t.Errorf("%q differs: %d bytes", name, len(have[name]))
		}
	}
	if len(have) != len(written) || len(written) != 2*len(all) {
		t.Errorf("%d files, LMCache has %d", len(have), len(written))
	}
	for i, raw := range replay(t, reads...) {
		var answer struct{ Payload []byte }
		if err := json.Unmarshal(raw, &answer); err != nil || !bytes.Equal(answer.Payload, content(all[i])) {
			t.Errorf("%s: LMCache reads %d bytes, %v", all[i], len(answer.Payload), err)
		}
	}
}

// Chunks of several tensors, of one layer each and with tags are LMCache's as any other.
func TestKindsOfChunks(t *testing.T) {
	layer := 31
	for name, c := range map[string]struct {
		change func(*Options)
		chunk  map[string]any
	}{
		"two groups": {
			func(o *Options) {
				o.Groups = []gds.Group{{DType: "BF16", Shape: []int64{2, 1, 16, 64}}, {DType: "F8E4M3FN", Shape: []int64{4, 16, 64}}}
				o.MemoryFormat = 1
			},
			map[string]any{"shape": []int{2, 1, 16, 64}, "groups": []any{[]any{[]int{2, 1, 16, 64}, "bfloat16"}, []any{[]int{4, 16, 64}, "float8_e4m3fn"}}},
		},
		"a first group of another type than the key's": {
			func(o *Options) {
				o.Groups = []gds.Group{{DType: "U8", Shape: []int64{4096}}, {DType: "BF16", Shape: []int64{2048}}}
				o.MemoryFormat = 6
			},
			map[string]any{"shape": []int{4096}, "fmt": 6, "groups": []any{[]any{[]int{4096}, "uint8"}, []any{[]int{2048}, "bfloat16"}}, "header": "uint8"},
		},
		"a layer": {
			func(o *Options) { o.Layer = &layer },
			map[string]any{"shape": []int{16, 2, 128}, "fmt": 2, "layer": 31},
		},
		"a layer and tags": {
			func(o *Options) {
				o.Layer, o.Tags = &layer, []lmcache.Tag{{Key: "user", Value: "Zoë & co/x"}, {Key: "b", Value: "-SEP-"}}
			},
			map[string]any{"shape": []int{16, 2, 128}, "fmt": 2, "layer": 31, "tags": [][2]string{{"user", "Zoë & co/x"}, {"b", "-SEP-"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := options("")
			c.change(&o)
			bothWays(t, o, numbers()[3:7], func(key kv.Key) map[string]any {
				r := request("", key, nil)
				maps.Copy(r, c.chunk)
				return r
			})
		})
	}
}

// digests are those whose texts in Python have quotes, slashes, dots and zeros at the beginning.
func digests() (all [][]byte) {
	for _, begin := range []string{"ab", "\x00\x01", "\x00\x00", "'a", "a'", "\"'", "\\a", "\n", "x/", "..", "./", "\xff", "~ "} {
		sum := sha256.Sum256([]byte(begin))
		copy(sum[:], begin)
		all = append(all, sum[:])
	}
	return all
}

// known knows the ids of digests, and of nothing else.
type known map[kv.Key]keys.ID

func (k known) ID(key kv.Key) (keys.ID, bool) { id, ok := k[key]; return id, ok }
func (k known) Key(id keys.ID) kv.Key         { return kv.Key(id.Bytes()[16:]) }

func newKnown(digests ...[]byte) (k known, all []kv.Key) {
	k = known{}
	for _, raw := range digests {
		id, _ := keys.DigestID(raw)
		k[k.Key(id)] = id
		all = append(all, k.Key(id))
	}
	return k, all
}

// Whole digests are LMCache's, whether it has them as bytes or as numbers.
func TestWholeDigests(t *testing.T) {
	ids, all := newKnown(digests()...)
	all = append(all, keys.Int64Key(-6789), keys.Uint64Key(1<<63))
	for name, asNumbers := range map[string]bool{"bytes": false, "numbers": true} {
		t.Run(name, func(t *testing.T) {
			o := options("")
			o.IDs, o.DigestNumbers = ids, asNumbers
			bothWays(t, o, all, func(key kv.Key) map[string]any {
				id, ok := ids[key]
				if !ok {
					return request("", key, nil)
				}
				r := request("", keys.Int64Key(0), nil)
				if asNumbers {
					r["hash"] = json.Number(new(big.Int).SetBytes(id.Bytes()).String())
				} else {
					delete(r, "hash")
					r["digest"] = hex.EncodeToString(id.Bytes())
				}
				return r
			})
		})
	}
}

// Whatever a store's own setting, it finds, lists once and deletes what LMCaches with both kinds of
// digests have written, and also the chunks that LMCache would write outside of the directory.
func TestDigestsOfBothKinds(t *testing.T) {
	escaping := sha256.Sum256([]byte("/"))
	escaping[0] = '/'
	ids, all := newKnown(append(digests(), escaping[:])...)
	outside := all[len(all)-1]
	for _, asNumbers := range []bool{false, true} {
		dir := t.TempDir()
		var requests []map[string]any
		for i, key := range all[:len(all)-1] {
			id := ids[key]
			number := map[string]any{"root": dir, "payload": base64.StdEncoding.EncodeToString(content(key)), "hash": json.Number(new(big.Int).SetBytes(id.Bytes()).String())}
			raw := maps.Clone(number)
			delete(raw, "hash")
			raw["digest"] = hex.EncodeToString(id.Bytes())
			for kind, more := range []map[string]any{number, raw} {
				if i%3 == kind || i%3 == 2 {
					r := request("write", keys.Int64Key(0), nil)
					delete(r, "hash")
					maps.Copy(r, more)
					requests = append(requests, r)
				}
			}
		}
		replay(t, requests...)
		o := options(dir)
		o.IDs, o.DigestNumbers = ids, asNumbers
		s := open(t, o)
		save(t, s, outside)
		want := slices.Clone(all)
		slices.SortFunc(want, func(a, b kv.Key) int { return bytes.Compare(a[:], b[:]) })
		if have := listed(t, s); !slices.Equal(have, want) {
			t.Errorf("listed: %v, want %v", have, want)
		}
		for _, key := range all {
			if err := load(t, s, key); err != nil || !has(t, s, key) {
				t.Errorf("%s: %v", key, err)
			}
		}
		stranger := kv.Key{1, 2, 3}
		if err := load(t, s, stranger); err != kv.ErrMiss || has(t, s, stranger) {
			t.Errorf("a key whose id is unknown: %v", err)
		}
		if err := s.Delete(t.Context(), []kv.Key{stranger}); err == nil {
			t.Error("a key whose id is unknown is deleted")
		}
		must(t, s.Delete(t.Context(), all))
		if left := chunksIn(t, dir); len(left) > 0 {
			t.Errorf("left: %v", slices.Collect(maps.Keys(left)))
		}
	}
}

// A digest that is no larger than a number of 64 bits is not that number's chunk.
func TestDigestThatIsANumber(t *testing.T) {
	raw := make([]byte, 32)
	raw[31], raw[30] = 7, 1
	ids, all := newKnown(raw)
	number := keys.Int64Key(0x107)
	for _, asNumbers := range []bool{false, true} {
		o := options(t.TempDir())
		o.IDs, o.DigestNumbers, o.Checksums = ids, asNumbers, kv.ChecksumsOff
		s := open(t, o)
		save(t, s, number)
		if err := load(t, s, all[0]); err != kv.ErrMiss || has(t, s, all[0]) {
			t.Errorf("numbers %v: the digest: %v", asNumbers, err)
		}
		save(t, s, all[0])
		for _, key := range []kv.Key{number, all[0]} {
			if err := load(t, s, key); err != nil {
				t.Errorf("numbers %v: %s: %v", asNumbers, key, err)
			}
		}
		if n := len(listed(t, s)); n != 2 {
			t.Errorf("numbers %v: %d are listed", asNumbers, n)
		}
	}
}

// A pipe with the name of a directory of blocks keeps nobody waiting.
func TestPipeThatIsNoDirectory(t *testing.T) {
	dir := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(dir, "12"), 0o644))
	s := open(t, options(dir))
	save(t, s, keys.Uint64Key(5))
	if n := len(listed(t, s)); n != 1 {
		t.Errorf("%d are listed", n)
	}
}
