package pages

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

func listedKeys(t *testing.T, s *Store) []kv.Key {
	t.Helper()
	var all []kv.Key
	for k, err := range s.Keys(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, k)
	}
	return all
}

func TestDelete(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 100)
	s, other := mustOpen(t, o), mustOpen(t, o)
	o = h.options(t.TempDir(), 100)
	o.Namespace = kv.Fingerprint{8}
	another := mustOpen(t, o)
	stored(t, s, keysOf(0, 20)...)
	stored(t, another, keysOf(0, 5)...)
	if err := s.Delete(t.Context(), keysOf(10, 100)); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{s, other} {
		there(t, s, keysOf(0, 10)...)
		for i, found := range lookup(t, s, keysOf(10, 10)...) {
			if found {
				t.Errorf("block %d is found after it was deleted", 10+i)
			}
		}
		for _, err := range load(t, s, keysOf(10, 10)...) {
			if !errors.Is(err, kv.ErrMiss) || errors.Is(err, kv.ErrCorrupt) {
				t.Errorf("load of a deleted block: %v", err)
			}
		}
		if got := listedKeys(t, s); !slices.Equal(got, keysOf(0, 10)) {
			t.Errorf("listed: %s", got)
		}
	}
	there(t, another, keysOf(0, 5)...)
	if got := listedKeys(t, another); !slices.Equal(got, keysOf(0, 5)) {
		t.Errorf("listed of another namespace: %s", got)
	}
	stored(t, s, keysOf(10, 10)...)
	there(t, other, keysOf(0, 20)...)

	// What was deleted stays deleted after the service restarts.
	if err := s.Delete(t.Context(), keysOf(0, 5)); err != nil {
		t.Fatal(err)
	}
	h.stop()
	h.start()
	if got := listedKeys(t, s); !slices.Equal(got, keysOf(5, 15)) {
		t.Errorf("listed after a restart: %s", got)
	}
}

// An unfinished block is not listed, and its save goes on after a Delete.
func TestDeleteDuringASave(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	s := mustOpen(t, h.options(t.TempDir(), 100))
	shards := shardsOf(key(0))
	for _, one := range shards {
		content(one).Fill(one.Buf)
	}
	task, err := s.Save(t.Context(), shards[:2])
	if err := errors.Join(results(t, task, err)...); err != nil {
		t.Fatal(err)
	}
	if got := listedKeys(t, s); len(got) > 0 {
		t.Errorf("listed: %s", got)
	}
	if err := s.Delete(t.Context(), keysOf(0, 1)); err != nil {
		t.Fatal(err)
	}
	task, err = s.Save(t.Context(), shards[2:])
	if err := errors.Join(results(t, task, err)...); err != nil {
		t.Fatal(err)
	}
	there(t, s, key(0))
}

// Keys yields more keys than one answer of the service holds.
func TestKeysOfALargeFile(t *testing.T) {
	const blocks = listed + 100
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 0)
	o.Layout = kv.Layout{BlockBytes: 64, ShardBytes: 64}
	o.CapacityBytes = blocks * strideOf(o.Layout)
	s := mustOpen(t, o)
	var shards []kv.Shard
	for _, k := range keysOf(0, blocks) {
		shards = append(shards, kv.Shard{Key: k, Buf: make([]byte, 64)})
	}
	task, err := s.Save(t.Context(), shards)
	if err := errors.Join(results(t, task, err)...); err != nil {
		t.Fatal(err)
	}
	if got := listedKeys(t, s); !slices.Equal(got, keysOf(0, blocks)) {
		t.Errorf("%d of %d keys are listed", len(got), blocks)
	}
	n := 0
	for range s.Keys(t.Context()) {
		if n++; n == 5 {
			break
		}
	}
	if err := s.Delete(t.Context(), listedKeys(t, s)); err != nil { // purged
		t.Fatal(err)
	}
	if got := listedKeys(t, s); len(got) > 0 {
		t.Errorf("%d keys are left", len(got))
	}
}

// Delete and Keys fail without a service and after Close. A service that has lost its
// index lists nothing.
func TestDeleteAndKeysFail(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 100)
	o.Timeout = time.Second
	s := mustOpen(t, o)
	stored(t, s, keysOf(0, 3)...)
	h.stop()
	if err := s.Delete(t.Context(), keysOf(0, 1)); !errors.Is(err, kv.ErrTimeout) {
		t.Errorf("Delete without a service: %v", err)
	}
	ends := func(want error) {
		t.Helper()
		n := 0
		for k, err := range s.Keys(t.Context()) {
			if n++; k != (kv.Key{}) || err == nil || want != nil && !errors.Is(err, want) {
				t.Errorf("Keys: %s, %v", k, err)
			}
		}
		if n != 1 {
			t.Errorf("%d errors", n)
		}
	}
	ends(nil)
	if err := os.RemoveAll(h.dir); err != nil {
		t.Fatal(err)
	}
	h.start()
	if got := listedKeys(t, s); len(got) > 0 {
		t.Errorf("listed by a service that has lost its index: %s", got)
	}
	if err := s.Delete(t.Context(), keysOf(0, 3)); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Delete(ctx, keysOf(0, 1)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ends(kv.ErrClosed)
	if err := s.Delete(t.Context(), keysOf(0, 1)); !errors.Is(err, kv.ErrClosed) {
		t.Error(err)
	}
}
