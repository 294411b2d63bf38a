package files_test

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// descriptorsVar makes TestFewDescriptors the child that has few.
const descriptorsVar = "KV3FS_FEW_DESCRIPTORS"

// A batch of many more blocks than there are descriptors is saved and loaded, block by
// block and layer by layer, in one batch and in one for each layer.
func TestFewDescriptors(t *testing.T) {
	if os.Getenv(descriptorsVar) == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		child := exec.CommandContext(t.Context(), self, "-test.run=^TestFewDescriptors$", "-test.v", "-test.timeout=120s")
		child.Env = append(os.Environ(), descriptorsVar+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	limit := syscall.Rlimit{Cur: 256, Max: 256}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for name, direct := range map[string]bool{"buffered": false, "direct": true} {
		t.Run(name, func(t *testing.T) { manyBlocks(t, direct) })
	}
}

func manyBlocks(t *testing.T, direct bool) {
	const blocks = 600
	l := kv.Layout{BlockBytes: 3 * 512, ShardBytes: 512}
	s, err := files.Open(files.Options{Dirs: []string{t.TempDir()}, Layout: l, DirectIO: direct})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	done := func(what string, task *kv.Task, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		failed := 0
		for _, err := range task.All() {
			if err != nil {
				failed++
			}
		}
		if failed > 0 {
			t.Fatalf("%s: %d of %d shards failed, the first with: %v", what, failed, task.Len(), task.Err())
		}
	}
	type order func(l kv.Layout, keys []kv.Key, bufs [][]byte) []kv.Shard
	for kind, in := range map[byte]order{1: kv.Layout.ByBlock, 2: kv.Layout.ByLayer} {
		keys, bufs := make([]kv.Key, blocks), make([][]byte, blocks)
		for n := range keys {
			keys[n] = kv.Key{byte(n), byte(n >> 8), kind}
			bufs[n] = bytes.Repeat([]byte{byte(n), kind}, int(l.BlockBytes)/2)
		}
		shards := in(l, keys, bufs)
		for len(shards) > 0 {
			part := len(shards)
			if kind == 2 {
				part = blocks // a batch for each layer: all blocks are unfinished at once
			}
			task, err := s.Save(t.Context(), shards[:part])
			done("Save", task, err)
			shards = shards[part:]
		}
		for _, in := range []order{kv.Layout.ByBlock, kv.Layout.ByLayer} {
			got := make([][]byte, blocks)
			for n := range got {
				got[n] = make([]byte, l.BlockBytes)
			}
			task, err := s.Load(t.Context(), in(l, keys, got))
			done("Load", task, err)
			for n := range got {
				if !bytes.Equal(got[n], bufs[n]) {
					t.Fatalf("block %d has other bytes", n)
				}
			}
		}
	}
}
