package tier_test

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/segment"
	"github.com/kv3fs/kv3fs/kvstore/internal/tier"
)

var layout = kv.Layout{BlockBytes: 3 * 4096, ShardBytes: 4096}

// host is a tier of real stores: a directory of the host's own, and one that all hosts share.
type host struct {
	*testing.T
	*tier.Store
	near, far *fault.Store
}

// hostOn opens a host whose own directory is dir/NAME.
func hostOn(t *testing.T, dir, name string, o tier.Options) *host {
	t.Helper()
	near, err := segment.Open(segment.Options{Dir: filepath.Join(dir, name), Layout: layout, CapacityBytes: 16 << 20, SegmentBytes: 2 << 20, Streams: 4})
	if err != nil {
		t.Fatal(err)
	}
	far, err := files.Open(files.Options{Dirs: []string{farDir(dir)}, Layout: layout, Streams: 4})
	if err != nil {
		t.Fatal(err)
	}
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	h := &host{T: t, near: fault.New(near), far: fault.New(far)}
	if h.Store, err = tier.New(h.near, h.far, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func farDir(dir string) string { return filepath.Join(dir, "far") }

func key(n int) kv.Key { return kv.Key{7, byte(n), byte(n >> 8)} }

func keys(first, n int) (all []kv.Key) {
	for i := range n {
		all = append(all, key(first+i))
	}
	return all
}

// content is the content of a shard.
func content(k kv.Key, index int) []byte {
	pattern := append(k[:], byte(index), 0xa5, k[1]^byte(index), 0x5a)
	return bytes.Repeat(pattern, int(layout.ShardBytes)/len(pattern)+1)[:layout.ShardBytes]
}

func shards(of []kv.Key, filled bool) (all []kv.Shard) {
	for _, k := range of {
		for i := range layout.Shards() {
			buf := make([]byte, layout.ShardBytes)
			if filled {
				copy(buf, content(k, i))
			}
			all = append(all, kv.Shard{Key: k, Index: i, Buf: buf})
		}
	}
	return all
}

func (h *host) save(of ...kv.Key) {
	h.Helper()
	if err := h.trySave(of...); err != nil {
		h.Fatal(err)
	}
}

func (h *host) trySave(of ...kv.Key) error {
	h.Helper()
	t, err := h.Save(h.Context(), shards(of, true))
	if err != nil {
		return err
	}
	return t.Wait(h.Context())
}

// load loads blocks and checks their bytes.
func (h *host) load(of ...kv.Key) {
	h.Helper()
	if err := h.tryLoad(h.Store, of...); err != nil {
		h.Fatal(err)
	}
}

func (h *host) tryLoad(from kv.Store, of ...kv.Key) error {
	h.Helper()
	batch := shards(of, false)
	t, err := from.Load(h.Context(), batch)
	if err != nil {
		return err
	}
	for i, err := range t.All() {
		if err == nil && !bytes.Equal(batch[i].Buf, content(batch[i].Key, batch[i].Index)) {
			h.Errorf("shard %d of %s has wrong bytes", batch[i].Index, batch[i].Key)
		}
	}
	return t.Err()
}

func (h *host) flush() {
	h.Helper()
	if err := h.Flush(h.Context()); err != nil {
		h.Fatal(err)
	}
}

// has returns how many of these blocks a store has.
func (h *host) has(in kv.Store, of ...kv.Key) (n int) {
	h.Helper()
	found := make([]bool, len(of))
	if err := in.Lookup(h.Context(), of, found); err != nil {
		h.Fatal(err)
	}
	for _, is := range found {
		if is {
			n++
		}
	}
	return n
}

// eventually waits for something that will happen.
func (h *host) eventually(what string, is func() bool) {
	h.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			h.Fatalf("not within a minute: %s", what)
		}
	}
}

// hung makes every call that moves or looks up blocks end as one on a mount that hangs.
func hung(why error) (all []fault.Fault) {
	for _, m := range []fault.Method{fault.Lookup, fault.LookupPrefix, fault.Load, fault.Save, fault.Delete, fault.Flush} {
		all = append(all, fault.Fault{Method: m, Delay: 50 * time.Millisecond, Err: why})
	}
	return all
}

// bounded is a context for calls that must not hang.
func (h *host) bounded() context.Context {
	ctx, cancel := context.WithTimeout(h.Context(), time.Minute)
	h.Cleanup(cancel)
	return ctx
}
