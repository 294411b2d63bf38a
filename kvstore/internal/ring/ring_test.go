package ring_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ring"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

var layout = kv.Layout{BlockBytes: 64 << 10, ShardBytes: 16 << 10}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, d *daemontest.Daemon, o ring.Options) *ring.Store {
	t.Helper()
	o.Mount, o.Layout, o.BufferBytes = d.Mount, layout, 4<<20
	s, err := ring.Open(o)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func content(k kv.Key) []byte { return bytes.Repeat(k[:], int(layout.BlockBytes)/len(k)) }

func begin(t testing.TB, do func(k kv.Key, buf []byte) (*kv.Task, error), k kv.Key, buf []byte) error {
	t.Helper()
	task, err := do(k, buf)
	must(t, err)
	return task.Wait(t.Context())
}

func save(t testing.TB, s kv.Store, k kv.Key) error {
	t.Helper()
	return begin(t, func(k kv.Key, buf []byte) (*kv.Task, error) {
		return s.Save(t.Context(), layout.ByBlock([]kv.Key{k}, [][]byte{buf}))
	}, k, content(k))
}

// load loads a block into buf and checks its content.
func load(t testing.TB, s kv.Store, k kv.Key, buf []byte) error {
	t.Helper()
	clear(buf)
	err := begin(t, func(k kv.Key, buf []byte) (*kv.Task, error) {
		return s.Load(t.Context(), layout.ByBlock([]kv.Key{k}, [][]byte{buf}))
	}, k, buf)
	if err == nil && !bytes.Equal(buf, content(k)) {
		t.Errorf("block %s: wrong bytes", k)
	}
	return err
}

func has(t testing.TB, s kv.Store, k kv.Key) bool {
	t.Helper()
	found := make([]bool, 1)
	must(t, s.Lookup(t.Context(), []kv.Key{k}, found))
	return found[0]
}

func path(d *daemontest.Daemon, k kv.Key) string {
	return filepath.Join(d.Mount, k.String()[:2], k.String())
}

func TestNotAMount(t *testing.T) {
	dir := t.TempDir()
	for want, o := range map[string]ring.Options{
		"storage_backends is empty": {Layout: layout},
		"use the Posix store":       {Layout: layout, Mount: dir},
		"no such file":              {Layout: layout, Mount: dir + "/none"},
		"block_size":                {Mount: dir},
	} {
		if s, err := ring.Open(o); err == nil || s != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that says %q, got %v", want, err)
		}
	}
}

func TestOnAMount(t *testing.T) {
	d := daemontest.Serve(t)
	below := filepath.Join(d.Mount, "below")
	must(t, os.Mkdir(below, 0o755))
	if _, err := ring.Open(ring.Options{Mount: below, Layout: layout}); err == nil || !strings.Contains(err.Error(), d.Mount+": name that") {
		t.Error(err)
	}
	if _, err := ring.Open(ring.Options{Mount: d.Mount, Layout: layout, OpenFiles: -1}); err == nil {
		t.Error("a negative number of open files")
	}

	t.Run("UCM's layout", func(t *testing.T) {
		s := open(t, d, ring.Options{})
		ours, theirs := kv.Key{1, 2}, kv.Key{1, 3}
		must(t, save(t, s, ours))
		raw, err := os.ReadFile(path(d, ours))
		if err != nil || !bytes.Equal(raw, content(ours)) {
			t.Errorf("%d bytes, %v", len(raw), err)
		}
		must(t, os.WriteFile(filepath.Join(d.Mount, ".temp", theirs.String()), content(theirs), 0o644))
		must(t, os.Rename(filepath.Join(d.Mount, ".temp", theirs.String()), path(d, theirs)))
		if !has(t, s, theirs) {
			t.Error("UCM's block is not found")
		}
		must(t, load(t, s, theirs, make([]byte, layout.BlockBytes)))
		if n := s.Stats().UnverifiedShards; n != int64(layout.Shards()) {
			t.Errorf("%d unverified", n)
		}
	})

	t.Run("registered memory", func(t *testing.T) {
		mem, err := memory.New(1 << 20)
		must(t, err)
		s := open(t, d, ring.Options{})
		t.Cleanup(func() {
			must(t, s.Close())
			must(t, mem.Close())
		})
		must(t, kv.Registrar(s).Register(mem.Name(), mem.Bytes()))
		must(t, save(t, s, kv.Key{2}))
		must(t, load(t, s, kv.Key{2}, mem.Bytes()[4096:][:layout.BlockBytes]))
	})

	t.Run("delete and list", func(t *testing.T) {
		d.Empty(t)
		s, other := open(t, d, ring.Options{}), open(t, d, ring.Options{})
		buf := make([]byte, layout.BlockBytes)
		all := []kv.Key{{5, 1}, {5, 2}, {6}}
		for _, k := range all {
			must(t, save(t, s, k))
			must(t, load(t, s, k, buf)) // it stays open
		}
		must(t, os.WriteFile(path(d, kv.Key{5, 3}), content(kv.Key{5, 3}), 0o644)) // UCM's
		keys := func(s *ring.Store) (n int) {
			for _, err := range s.Keys(t.Context()) {
				must(t, err)
				n++
			}
			return n
		}
		if n := keys(other); n != 3 {
			t.Errorf("%d keys are listed", n)
		}
		must(t, s.Delete(t.Context(), all[:2]))
		for _, k := range all[:2] {
			if err := load(t, s, k, buf); err != kv.ErrMiss || has(t, s, k) || has(t, other, k) {
				t.Errorf("a deleted block: %v", err)
			}
		}
		if n := keys(other); n != 1 {
			t.Errorf("%d keys are listed after two of three were deleted", n)
		}
		if err := s.Delete(t.Context(), []kv.Key{{5, 3}}); err == nil || !has(t, s, kv.Key{5, 3}) {
			t.Errorf("UCM's block: %v", err)
		}
		must(t, save(t, s, all[0]))
		must(t, load(t, other, all[0], buf))
	})

	// A file that is kept open serves loads, but no lookups.
	t.Run("open files", func(t *testing.T) {
		buf := make([]byte, layout.BlockBytes)
		s := open(t, d, ring.Options{OpenFiles: 1})
		a, b := kv.Key{3}, kv.Key{4}
		must(t, save(t, s, a))
		must(t, save(t, s, b))
		must(t, load(t, s, a, buf))
		must(t, os.Remove(path(d, a)))
		if has(t, s, a) {
			t.Error("a removed block is found")
		}
		must(t, load(t, s, a, buf)) // still open
		must(t, load(t, s, b, buf)) // in its place
		if err := load(t, s, a, buf); err != kv.ErrMiss {
			t.Error(err)
		}
		must(t, save(t, s, a))
		must(t, load(t, s, a, buf))
	})
}

// The daemon is killed and another one takes its place. Loads fail while there is none
// and work again afterwards, also of blocks that were open.
func TestDaemonReplaced(t *testing.T) {
	for _, passthrough := range []string{"auto", "off"} {
		t.Run("passthrough "+passthrough, func(t *testing.T) { daemonReplaced(t, daemontest.Serve(t, "--passthrough", passthrough)) })
	}
}

func daemonReplaced(t *testing.T, d *daemontest.Daemon) {
	s := open(t, d, ring.Options{Timeout: 5 * time.Second})
	buf := make([]byte, layout.BlockBytes)
	must(t, save(t, s, kv.Key{1}))
	must(t, load(t, s, kv.Key{1}, buf))
	d.Kill()
	if err := load(t, s, kv.Key{1}, buf); err == nil {
		t.Error("loaded without a daemon")
	}
	if err := save(t, s, kv.Key{2}); err == nil {
		t.Error("saved without a daemon")
	}
	must(t, syscall.Unmount(d.Mount, syscall.MNT_DETACH))
	d.Start(t)
	var err error
	for patience := time.Now().Add(20 * time.Second); time.Now().Before(patience); time.Sleep(10 * time.Millisecond) {
		if err = errors.Join(save(t, s, kv.Key{2}), load(t, s, kv.Key{1}, buf), load(t, s, kv.Key{2}, buf)); err == nil {
			// What was written since is recorded where others find it.
			other := open(t, d, ring.Options{Checksums: kv.ChecksumsRequire})
			must(t, load(t, other, kv.Key{2}, buf))
			return
		}
	}
	t.Error(err)
}

// The daemon stops answering: every call ends, and Close too.
func TestDaemonStopped(t *testing.T) {
	d := daemontest.Serve(t)
	s := open(t, d, ring.Options{Timeout: time.Second})
	buf := make([]byte, layout.BlockBytes)
	must(t, save(t, s, kv.Key{1}))
	must(t, load(t, s, kv.Key{1}, buf))
	d.Freeze(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var calls sync.WaitGroup
		for what, call := range map[string]func() error{
			"Lookup": func() error { return s.Lookup(t.Context(), []kv.Key{{1}, {2}}, make([]bool, 2)) },
			"open":   func() error { return load(t, s, kv.Key{1}, buf) },
			"closed": func() error { return load(t, s, kv.Key{2}, make([]byte, layout.BlockBytes)) },
			"save":   func() error { return save(t, s, kv.Key{3}) },
		} {
			calls.Go(func() {
				if err := call(); !errors.Is(err, kv.ErrTimeout) {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		calls.Wait()
		if err := s.Close(); err == nil {
			t.Error("Close returned no error although calls hang")
		}
	}()
	select {
	case <-ended:
	case <-time.After(60 * time.Second):
		t.Fatal("a call waits for a daemon that hangs")
	}
}
