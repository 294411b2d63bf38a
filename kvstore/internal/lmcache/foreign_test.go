package lmcache_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	layout "github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// whole is what LMCache writes for a chunk.
func whole(key kv.Key, change func(*layout.Header)) []byte {
	h := *headerOf(shape)
	h.Groups = slices.Clone(h.Groups)
	if change != nil {
		change(&h)
	}
	return append(h.Append(nil), content(key)...)
}

// Files of other models, versions and lengths are misses and stay where they are; what has
// the name of a block and is none gives way to a Save.
func TestFilesThatAreNoBlocks(t *testing.T) {
	key := keys.Uint64Key(0x12)
	mine := nameOf("12")
	for name, c := range map[string]struct {
		file  string
		raw   []byte
		stays bool // a Save does not replace it
	}{
		"another model":                {"other@2@1@12@bfloat16.data", whole(key, nil), true},
		"another world size":           {strings.Replace(mine, "@2@", "@4@", 1), whole(key, nil), true},
		"another rank":                 {strings.Replace(mine, "@1@", "@0@", 1), whole(key, nil), true},
		"another type":                 {strings.Replace(mine, "bfloat16", "half", 1), whole(key, nil), true},
		"a layer":                      {strings.Replace(mine, ".data", "@3.data", 1), whole(key, nil), true},
		"a tag":                        {strings.Replace(mine, ".data", "@a%b.data", 1), whole(key, nil), true},
		"a very old name":              {"vllm@meta-llama-SEP-Llama-3-8B@2@1@12.data", whole(key, nil), true},
		"older slashes":                {strings.Replace(mine, "-SEP-", "-", 1), whole(key, nil), true},
		"the hash with a zero":         {nameOf("012"), whole(key, nil), true},
		"the hash in capitals":         {nameOf("-1F"), whole(key, nil), true},
		"a temporary file":             {strings.Replace(mine, ".data", ".tmp", 1), whole(key, nil), true},
		"an object":                    {"meta-llama-SEP-Llama-3-8B@0x02010201@0@" + strings.Repeat("12", 32) + ".data", content(key), true},
		"no header":                    {mine, content(key), false},
		"two groups":                   {mine, whole(key, func(h *layout.Header) { h.Groups = append(h.Groups, h.Groups[0]) }), false},
		"another shape":                {mine, whole(key, func(h *layout.Header) { h.Groups[0].Shape = [4]int{2, 2, 2, 1024} }), false},
		"another type in the header":   {mine, whole(key, func(h *layout.Header) { h.Groups[0].DType = layout.DTypeFP8E5M2 }), false},
		"another memory format":        {mine, whole(key, func(h *layout.Header) { h.Format = layout.FormatMLA }), false},
		"another length in the header": {mine, whole(key, func(h *layout.Header) { h.PayloadBytes = 100 }), false},
		"a partial last chunk":         {mine, whole(key, nil)[:28+100], false},
		"cut short":                    {mine, whole(key, nil)[:8219], false},
		"only a header":                {mine, whole(key, nil)[:28], false},
		"part of a header":             {mine, whole(key, nil)[:27], false},
		"empty":                        {mine, nil, false},
		"too long":                     {mine, append(whole(key, nil), 0), false},
		"zeros":                        {mine, make([]byte, 28+8192), false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, in(dir))
			path := write(t, dir, c.file, c.raw)
			if err := load(t, s, key); err != kv.ErrMiss || has(t, s, key) || len(list(t, s)) > 0 {
				t.Errorf("loaded: %v; found: %v; listed: %v", err, has(t, s, key), list(t, s))
			}
			if n := s.Stats().CorruptBlocks; n > 0 {
				t.Errorf("%d blocks are counted as damaged", n)
			}
			if raw, err := os.ReadFile(path); err != nil || !bytes.Equal(raw, c.raw) {
				t.Errorf("it was touched: %v", err)
			}
			save(t, s, key)
			if err := load(t, s, key); err != nil {
				t.Error(err)
			}
			if raw, err := os.ReadFile(path); err != nil || bytes.Equal(raw, c.raw) != c.stays {
				t.Errorf("after a Save: %v", err)
			}
		})
	}
}

// A directory or a link with the name of a block is none.
func TestNamesThatAreNoFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, os.Mkdir(filepath.Join(dir, nameOf("1")), 0o755))
	must(t, os.Symlink("/dev/zero", filepath.Join(dir, nameOf("2"))))
	for _, n := range []uint64{1, 2} {
		if err := load(t, s, keys.Uint64Key(n)); err != kv.ErrMiss || has(t, s, keys.Uint64Key(n)) {
			t.Error(err)
		}
	}
}

// Namespaces with equal names of files, such as two revisions of a model, share files; the
// records of checksums tell them apart.
func TestNamesThatCollide(t *testing.T) {
	dir := t.TempDir()
	key := keys.Uint64Key(7)
	o := in(dir)
	o.Namespace = kv.Fingerprint{1}
	save(t, open(t, o), key)
	other := in(dir)
	other.Namespace = kv.Fingerprint{2}
	s := open(t, other)
	if err := load(t, s, key); err != kv.ErrMiss || has(t, s, key) {
		t.Errorf("another namespace's block: %v", err)
	}
}

// Deployments in one directory whose hashes are equal do not see each other's blocks, nor
// lose their records to each other.
func TestModelsInOneDirectory(t *testing.T) {
	dir := t.TempDir()
	key := keys.Uint64Key(7)
	a, b := in(dir), in(dir)
	b.Chunk.Model, b.Namespace = "b", kv.Fingerprint{2}
	first, second := open(t, a), open(t, b)
	save(t, first, key)
	if has(t, second, key) {
		t.Error("another model's block is found")
	}
	write(t, dir, "b@2@1@7@bfloat16.data", whole(key, nil)) // LMCache's
	if err := load(t, second, key); err != nil {
		t.Error(err)
	}
	must(t, second.Delete(t.Context(), []kv.Key{key}))
	if err := load(t, first, key); err != nil {
		t.Error(err)
	}
}

func TestRequiredChecksums(t *testing.T) {
	dir := t.TempDir()
	key := keys.Uint64Key(7)
	o := in(dir)
	o.Checksums = kv.ChecksumsRequire
	s := open(t, o)
	write(t, dir, nameOf("7"), whole(key, nil))
	if err := load(t, s, key); err != kv.ErrMiss {
		t.Error(err)
	}
	save(t, s, key)
	if err := load(t, s, key); err != nil {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	for want, change := range map[string]func(*lmcache.Options){
		"no base path":             func(o *lmcache.Options) { o.BasePaths = nil },
		"given twice":              func(o *lmcache.Options) { o.BasePaths = []string{dir, dir + "/"} },
		"mount what belongs there": func(o *lmcache.Options) { o.BasePaths = []string{dir + "/a/b"} },
		"below the base paths":     func(o *lmcache.Options) { o.TempDir = "../x" },
		"they must be the same":    func(o *lmcache.Options) { o.Layout = kv.Layout{BlockBytes: 100, ShardBytes: 100} },
		"name of a model":          func(o *lmcache.Options) { o.Chunk = nil },
		"has an @":                 func(o *lmcache.Options) { o.Chunk.Model = "a@b" },
		"shorter name":             func(o *lmcache.Options) { o.Chunk.Model = strings.Repeat("m", 240) },
		"tensors have":             func(o *lmcache.Options) { o.Header.Groups = append(o.Header.Groups, o.Header.Groups...) },
	} {
		o := in(dir)
		change(&o)
		if s, err := lmcache.Open(o); err == nil || !strings.Contains(err.Error(), want) {
			if s != nil {
				s.Close()
			}
			t.Errorf("%s: %v", want, err)
		}
	}
}

// corruptions is how many damages are tried; KV3FS_CORRUPTIONS says how many instead.
const corruptions = 100

// No damage to the files of recorded blocks makes a wrong byte: the block is right or a miss.
func TestCorruptions(t *testing.T) {
	n := corruptions
	if text := os.Getenv("KV3FS_CORRUPTIONS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		must(t, err)
	}
	for name, header := range map[string]bool{"with header": true, "save_chunk_meta false": false} {
		t.Run(name, func(t *testing.T) { corrupt(t, n, header) })
	}
}

// corrupt damages files n times. Without a header nothing in a file of the right length says
// what it should hold: only the checksum log tells.
func corrupt(t *testing.T, n int, header bool) {
	dir := t.TempDir()
	o := in(dir)
	if !header {
		o.Header = nil
	}
	s := open(t, o)
	var all []kv.Key
	for i := range 16 {
		all = append(all, keys.Uint64Key(uint64(i)<<8|uint64(i)))
	}
	rng := rand.New(rand.NewPCG(seed.New(t), 2))
	found, damaged := 0, 0
	for i := range n {
		save(t, s, all...)
		damage(t, files(t, dir), rng.Uint64())
		for _, key := range all {
			switch err := load(t, s, key); {
			case err == nil:
				found++
			case errors.Is(err, kv.ErrMiss):
				damaged++
			default:
				t.Fatalf("damage %d: %v", i, err)
			}
		}
	}
	t.Logf("%d damages: %d blocks were right, %d were misses, none was wrong", n, found, damaged)
	if damaged < n/2 {
		t.Errorf("only %d of %d damages were noticed", damaged, n)
	}
}
