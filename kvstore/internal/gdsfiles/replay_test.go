package gdsfiles

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/gds"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

const model = "meta-llama/Llama-3.1-8B"

var layout = kv.Layout{BlockBytes: 8 << 10, ShardBytes: 4 << 10}

// options are for chunks of [2, 2, 16, 64] elements of bfloat16.
func options(dirs ...string) Options {
	return Options{
		Dirs: dirs, Layout: layout, Namespace: kv.Fingerprint{1}, Model: model, WorldSize: 2, WorkerID: 1, DType: "bfloat16",
		Layers: 2, Tokens: 16, Timeout: 20 * time.Second,
	}
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
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

func content(key kv.Key) []byte {
	block := bytes.Repeat([]byte{key[15], key[14], 3, key[8]}, int(layout.BlockBytes/4))
	for i := range block {
		block[i] += byte(i >> 6)
	}
	return block
}

func save(t testing.TB, s *Store, all ...kv.Key) {
	t.Helper()
	var bufs [][]byte
	for _, key := range all {
		bufs = append(bufs, content(key))
	}
	task, err := s.Save(t.Context(), layout.ByBlock(all, bufs))
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// load returns the error of a load, and fails if it returns wrong bytes.
func load(t testing.TB, s *Store, key kv.Key) error {
	t.Helper()
	buf := make([]byte, layout.BlockBytes)
	task, err := s.Load(t.Context(), layout.ByBlock([]kv.Key{key}, [][]byte{buf}))
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err == nil && !bytes.Equal(buf, content(key)) {
		t.Errorf("block %s: wrong bytes", key)
	}
	return err
}

func has(t testing.TB, s *Store, key kv.Key) bool {
	t.Helper()
	found := make([]bool, 1)
	if err := s.Lookup(t.Context(), []kv.Key{key}, found); err != nil {
		t.Fatal(err)
	}
	return found[0]
}

func listed(t testing.TB, s *Store) (all []kv.Key) {
	t.Helper()
	for key, err := range s.Keys(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, key)
	}
	slices.SortFunc(all, func(a, b kv.Key) int { return bytes.Compare(a[:], b[:]) })
	return all
}

// numbers are hashes of all kinds: with a sign and without, long and short.
func numbers() []kv.Key {
	all := []kv.Key{keys.Uint64Key(1<<64 - 1), keys.Uint64Key(1 << 63)}
	for _, n := range []int64{0, 7, 42, 999, 1234, 987654321, 1 << 62, -1, -12, -345, -6789, -1 << 63} {
		all = append(all, keys.Int64Key(n))
	}
	slices.SortFunc(all, func(a, b kv.Key) int { return bytes.Compare(a[:], b[:]) })
	return all
}

func number(key kv.Key) json.Number {
	if n, ok := key.Uint64(); ok {
		return json.Number(json.RawMessage(appendUint(n)))
	}
	n, _ := key.Int64()
	raw, _ := json.Marshal(n)
	return json.Number(raw)
}

func appendUint(n uint64) []byte {
	raw, _ := json.Marshal(n)
	return raw
}

// request returns a request to the replay of LMCache's backend about a chunk.
func request(do string, key kv.Key, more map[string]any) map[string]any {
	r := map[string]any{
		"do": do, "model": model, "world": 2, "worker": 1, "hash": number(key), "dtype": "bfloat16", "shape": []int{2, 2, 16, 64}, "fmt": 1,
	}
	for name, value := range more {
		r[name] = value
	}
	return r
}

// replay makes requests to the replay of LMCache's backend, and returns its answers.
func replay(t *testing.T, requests ...map[string]any) (answers []json.RawMessage) {
	t.Helper()
	r := startReplay()
	if r == nil {
		t.Skip("no python3 here")
	}
	for _, request := range requests {
		var answer json.RawMessage
		err := r.to.Encode(request)
		if err == nil {
			err = r.from.Decode(&answer)
		}
		if err != nil {
			t.Fatalf("the replay of LMCache's backend: %v", err)
		}
		answers = append(answers, answer)
	}
	return answers
}

// What LMCache has written is found, loaded and deleted, whichever release wrote it and in
// whichever directory, and so are the chunks that its own start-up scan does not find.
func TestReadsLMCache(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	var requests []map[string]any
	for i, key := range numbers() {
		more := map[string]any{"root": dirs[i%2], "payload": base64.StdEncoding.EncodeToString(content(key)), "older": i%3 == 0, "cufile": i%4 == 0}
		if i%3 == 1 {
			more["groups"] = []any{[]any{[]int{2, 2, 16, 64}, "bfloat16"}}
		}
		requests = append(requests, request("write", key, more))
	}
	for _, dir := range dirs {
		requests = append(requests, map[string]any{"do": "scan", "root": dir})
	}
	answers := replay(t, requests...)
	scanned := 0
	for _, answer := range answers[len(answers)-2:] {
		var found []string
		if err := json.Unmarshal(answer, &found); err != nil {
			t.Fatal(err)
		}
		scanned += len(found)
	}
	if scanned != len(numbers())-6 { // 0, 7, 42, 999, -1 and -12
		t.Errorf("LMCache's scan finds %d of %d", scanned, len(numbers()))
	}
	s := open(t, options(dirs...))
	if all := listed(t, s); !slices.Equal(all, numbers()) {
		t.Errorf("listed: %v", all)
	}
	for _, key := range numbers() {
		if err := load(t, s, key); err != nil || !has(t, s, key) {
			t.Errorf("%s: %v", number(key), err)
		}
	}
	if st := s.Stats(); st.UnverifiedShards != int64(2*len(numbers())) || st.CorruptBlocks > 0 {
		t.Errorf("%+v", st)
	}
	if err := s.Delete(t.Context(), numbers()); err != nil || len(listed(t, s)) > 0 {
		t.Errorf("%v, left: %v", err, listed(t, s))
	}
	for _, dir := range dirs {
		if left, _ := filepath.Glob(filepath.Join(dir, "[^.]*", "*")); len(left) > 0 {
			for _, path := range left {
				if inner, _ := os.ReadDir(path); len(inner) > 0 || strings.Contains(path, "safetensors") {
					t.Errorf("left: %s", path)
				}
			}
		}
	}
	required := options(dirs...)
	required.Checksums = kv.ChecksumsRequire
	replay(t, requests[:1]...)
	if s := open(t, required); has(t, s, numbers()[0]) || load(t, s, numbers()[0]) != kv.ErrMiss {
		t.Error("found without a checksum")
	}
}

// LMCache reads what the store has written, and the files are, byte for byte, those that it
// writes itself.
func TestLMCacheReads(t *testing.T) {
	ours, theirs := t.TempDir(), t.TempDir()
	s := open(t, options(ours))
	save(t, s, numbers()...)
	var requests []map[string]any
	for _, key := range numbers() {
		requests = append(requests,
			request("read", key, map[string]any{"roots": []string{ours}}),
			request("write", key, map[string]any{"root": theirs, "payload": base64.StdEncoding.EncodeToString(content(key))}))
	}
	answers := replay(t, requests...)
	for i, key := range numbers() {
		var answer struct{ Payload []byte }
		if err := json.Unmarshal(answers[2*i], &answer); err != nil || !bytes.Equal(answer.Payload, content(key)) {
			t.Errorf("%s: LMCache reads %d bytes, %v", number(key), len(answer.Payload), err)
		}
	}
	pairs := 0
	err := filepath.Walk(theirs, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(theirs, path)
		got, err := os.ReadFile(filepath.Join(ours, rel))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs: %v", rel, err)
		}
		pairs++
		return nil
	})
	if err != nil || pairs != 2*len(numbers()) {
		t.Errorf("%d files, %v", pairs, err)
	}
}

// Files of other models, workers, types, shapes and versions, and those that are cut short,
// half there or no chunks at all are misses, and the next save replaces what is in its way.
func TestForeignFiles(t *testing.T) {
	key := keys.Int64Key(987654321)
	f, err := newFormat(options("x"), false)
	if err != nil {
		t.Fatal(err)
	}
	at, err := f.Place(key)
	if err != nil {
		t.Fatal(err)
	}
	header := f.header
	encode := func(change func(*gds.Header)) []byte {
		h := header
		change(&h)
		raw, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	head := f.head
	for name, c := range map[string]struct {
		name       string
		data, side []byte
		good       bool
	}{
		"good":           {at.Name, slices.Concat(head, content(key)), head, true},
		"no side file":   {at.Name, slices.Concat(head, content(key)), nil, false},
		"only side file": {at.Name, nil, head, false},
		"cut short":      {at.Name, slices.Concat(head, content(key))[:9000], head, false},
		"longer":         {at.Name, slices.Concat(head, content(key), head), head, false},
		"empty":          {at.Name, []byte{}, head, false},
		"no header":      {at.Name, make([]byte, at.Bytes), head, false},
		"other shape":    {at.Name, slices.Concat(encode(func(h *gds.Header) { h.Shape = []int64{2, 4, 16, 32} }), content(key)), head, false},
		"other type":     {at.Name, slices.Concat(encode(func(h *gds.Header) { h.DType = "F16" }), content(key)), head, false},
		"other format":   {at.Name, slices.Concat(encode(func(h *gds.Header) { h.Format = 6 }), content(key)), head, false},
		"two groups": {at.Name, slices.Concat(encode(func(h *gds.Header) {
			h.Shape = []int64{2, 2, 16, 64}
			h.Groups = []gds.Group{{DType: "BF16", Shape: []int64{2, 2, 16, 32}}, {DType: "BF16", Shape: []int64{2, 2, 16, 32}}}
		}), content(key)), head, false},
		"other version": {at.Name, slices.Concat(bytes.Replace(head, []byte(`"lmcache_version": "1"`), []byte(`"lmcache_version": "2"`), 1), content(key)), head, false},
		"other model":   {strings.Replace(at.Name, "Llama", "Lhama", 1), slices.Concat(head, content(key)), head, false},
		"other worker":  {strings.Replace(at.Name, "%402%401%40", "%402%400%40", 1), slices.Concat(head, content(key)), head, false},
		"other dtype":   {strings.Replace(at.Name, "bfloat16", "half", 1), slices.Concat(head, content(key)), head, false},
		"a layer":       {strings.Replace(at.Name, "bfloat16", "bfloat16%400", 1), slices.Concat(head, content(key)), head, false},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, at.Dir, c.name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			for path, raw := range map[string][]byte{path: c.data, path + ".metadata": c.side} {
				if raw == nil {
					continue
				}
				if err := os.WriteFile(path, raw, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			s := open(t, options(root))
			found, err := has(t, s, key), load(t, s, key)
			if found != c.good || (err == nil) != c.good || err != nil && !errors.Is(err, kv.ErrMiss) || (len(listed(t, s)) == 1) != c.good {
				t.Errorf("found %v, loaded %v, listed %v", found, err, listed(t, s))
			}
			save(t, s, key)
			if err := load(t, s, key); err != nil || !has(t, s, key) {
				t.Errorf("after a save: %v", err)
			}
		})
	}
}

// Two deployments in one directory whose keys are equal do not meet, because the names of their
// files differ.
func TestDeploymentsWithEqualKeys(t *testing.T) {
	dir := t.TempDir()
	one, other := options(dir), options(dir)
	other.WorkerID, other.Namespace = 0, kv.Fingerprint{2}
	s, o := open(t, one), open(t, other)
	key := keys.Int64Key(5)
	save(t, s, key)
	if has(t, o, key) || load(t, o, key) != kv.ErrMiss || len(listed(t, o)) > 0 {
		t.Error("a block of another worker is found")
	}
	save(t, o, key)
	if err := s.Delete(t.Context(), []kv.Key{key}); err != nil {
		t.Error(err)
	}
	if err := load(t, o, key); err != nil || has(t, s, key) {
		t.Error(err)
	}
	// A namespace that differs in what names do not tell is told apart by the records.
	revised := options(dir)
	revised.Namespace = kv.Fingerprint{3}
	save(t, s, key)
	if r := open(t, revised); has(t, r, key) || load(t, r, key) != kv.ErrMiss {
		t.Error("a block of another revision is found")
	}
}

func TestRefusals(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"gds_path is empty":    func(o *Options) { o.Dirs = nil },
		"twice":                func(o *Options) { o.Dirs = append(o.Dirs, o.Dirs[0]+"/.") },
		"has an @":             func(o *Options) { o.Model = "a@b" },
		"worker 2 of 2":        func(o *Options) { o.WorkerID = 2 },
		"element type":         func(o *Options) { o.DType = "fp8_e4m3fnuz" },
		"is no tensor":         func(o *Options) { o.Layers = 7 },
		"the shape [1 2]":      func(o *Options) { o.Shape = []int64{1, 2} },
		"model is too long":    func(o *Options) { o.Model = strings.Repeat("m", 200) },
		"mount what belongs":   func(o *Options) { o.Dirs[0] += "/missing/kv" },
		"must be a directory":  func(o *Options) { o.Dirs[0] = "/dev/null" },
		"the GPU is number -1": func(o *Options) { o.GPU = -1 },
	} {
		o := options(t.TempDir())
		change(&o)
		if s, err := Open(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
			if err == nil {
				s.Close()
			}
		}
	}
}

// Any key has a place of its own, which leads back to it.
func FuzzKey(f *testing.F) {
	for _, key := range append(numbers(), kv.Key{}, kv.Key{1}, kv.Key{15: 5}) {
		f.Add(key[:])
	}
	format, err := newFormat(options("x"), false)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var key kv.Key
		copy(key[:], raw)
		at, err := format.Place(key)
		if err != nil || !format.HasBlocks(at.Dir) {
			t.Fatalf("%s: %+v, %v", key, at, err)
		}
		if back, ok := format.Key(at.Name); !ok || back != key {
			t.Fatalf("%s became %s", key, back)
		}
	})
}
