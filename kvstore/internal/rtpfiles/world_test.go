package rtpfiles

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/kvcm"
	"github.com/kv3fs/kv3fs/internal/layout/rtpllm"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

var testLayout = kv.Layout{BlockBytes: 16384, ShardBytes: 4096}

// number returns RTP-LLM's key of the i-th block of the tests' prompt: a number with a
// sign.
func number(i int) int64 { return int64(blockhead.Sum([]byte{'k', byte(i), byte(i >> 8)})) }

// numbers returns n of them, beginning with the first-th.
func numbers(first, n int) []int64 {
	all := make([]int64, n)
	for i := range all {
		all[i] = number(first + i)
	}
	return all
}

// prompt returns the same as keys.
func prompt(first, n int) []kv.Key {
	all := make([]kv.Key, n)
	for i, k := range numbers(first, n) {
		all[i] = keys.Int64Key(k)
	}
	return all
}

// content returns the bytes of blocks.
func content(l kv.Layout, first, n int) []byte {
	raw := make([]byte, int64(n)*l.BlockBytes)
	for i := int64(0); i < int64(len(raw)); i += 8 {
		block, at := int64(first)+i/l.BlockBytes, i%l.BlockBytes
		seed := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(block)), uint64(at))
		binary.LittleEndian.PutUint64(raw[i:], blockhead.Sum(seed))
	}
	return raw
}

// itemPath returns the path of an item of RTP-LLM's below the root.
func itemPath(first, n int) string {
	return filepath.Join(testDir.Path(), rtpllm.Item{First: number(first), Last: number(first + n - 1)}.Name())
}

// filePath returns the path of a file of KVCM's below the root.
func filePath(first, n int) string {
	return filepath.Join(testInstance, testSpec, kvcm.Name(testInstance, testSpec, numbers(first, n)...))
}

// paths are the two, by store.
var paths = map[string]func(first, n int) string{"RtpLlm": itemPath, "Kvcm": filePath}

// openTest opens a store that reads files of up to 16 blocks.
func openTest(t testing.TB, name string, o Options) *Store {
	t.Helper()
	if o.PackBlocks == 0 {
		o.PackBlocks = 16
	}
	if o.Layout == (kv.Layout{}) {
		o.Layout = testLayout
	}
	o.Timeout = 5 * time.Minute // the machine may be busy
	s, err := openers[name](o)
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

// write writes a file as an engine that is done with it leaves it.
func write(t testing.TB, path string, raw []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		t.Fatal(err)
	}
}

func save(t testing.TB, s *Store, first, n int) {
	t.Helper()
	l := s.Layout()
	raw := content(l, first, n)
	var bufs [][]byte
	for i := range n {
		bufs = append(bufs, raw[int64(i)*l.BlockBytes:int64(i+1)*l.BlockBytes])
	}
	task, err := s.Save(t.Context(), l.ByBlock(prompt(first, n), bufs))
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// load loads blocks, and returns which of them were hits. A hit with a wrong byte fails the
// test.
func load(t testing.TB, s *Store, first, n int) []bool {
	t.Helper()
	l := s.Layout()
	got := make([]byte, int64(n)*l.BlockBytes)
	var bufs [][]byte
	for i := range n {
		bufs = append(bufs, got[int64(i)*l.BlockBytes:int64(i+1)*l.BlockBytes])
	}
	task, err := s.Load(t.Context(), l.ByLayer(prompt(first, n), bufs))
	if err != nil {
		t.Fatal(err)
	}
	<-task.Done()
	want := content(l, first, n)
	hits := make([]bool, n)
	for i := range hits {
		hits[i] = true
	}
	for k := range task.Len() {
		err, _ := task.Result(k)
		i := k % n
		part := int64(i)*l.BlockBytes + int64(task.Shard(k).Index)*l.ShardBytes
		switch {
		case errors.Is(err, kv.ErrMiss):
			hits[i] = false
		case err != nil:
			t.Fatalf("block %d: %v", first+i, err)
		case !bytes.Equal(got[part:part+l.ShardBytes], want[part:part+l.ShardBytes]):
			t.Fatalf("block %d has wrong bytes", first+i)
		}
	}
	return hits
}

// count checks how many blocks of a prompt LookupPrefix finds.
func count(t testing.TB, s *Store, first, n, want int) {
	t.Helper()
	if got, err := s.LookupPrefix(t.Context(), prompt(first, n)); got != want || err != nil {
		t.Errorf("of %d blocks from %d on, %d are found, %v; want %d", n, first, got, err, want)
	}
}

// hits checks that all of some blocks are loaded, or none.
func hits(t testing.TB, s *Store, first, n int, want bool) {
	t.Helper()
	for i, hit := range load(t, s, first, n) {
		if hit != want {
			t.Errorf("block %d: hit is %v, want %v", first+i, hit, want)
		}
	}
}
