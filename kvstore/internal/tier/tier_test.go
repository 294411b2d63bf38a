package tier_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/tier"
)

// What one host saves and flushes, another finds and keeps; then it needs the far store no
// more.
func TestAnotherHostFindsAndKeeps(t *testing.T) {
	dir := t.TempDir()
	a, b := hostOn(t, dir, "a", tier.Options{}), hostOn(t, dir, "b", tier.Options{})
	all := keys(0, 20)
	if n, err := b.LookupPrefix(t.Context(), all); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	a.save(all...)
	a.flush()
	if n, err := b.LookupPrefix(t.Context(), append(all, key(99))); n != 20 || err != nil {
		t.Fatalf("%d are found, %v", n, err)
	}
	b.load(all...)
	b.eventually("all are kept", func() bool { return b.has(b.near, all...) == 20 })
	if s := b.Stats(); s.FilledBlocks != 20 || s.PassedBytes != 20*layout.BlockBytes || s.LoadedBytes != 20*layout.BlockBytes || s.Next.LoadedBytes != 20*layout.BlockBytes {
		t.Errorf("%+v", s)
	}
	b.far.Set(fault.Fault{Method: fault.Load, Err: syscall.EIO})
	b.load(all...)
	if s := b.Stats(); s.PassedBytes != 20*layout.BlockBytes {
		t.Errorf("%d bytes came from far", s.PassedBytes)
	}
}

// Layers that come in batches of their own are kept, too, and what finds no memory is read
// again.
func TestLayersAreKept(t *testing.T) {
	for name, memory := range map[string]int64{"with memory for all": 0, "with memory for few": 1} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, b := hostOn(t, dir, "a", tier.Options{}), hostOn(t, dir, "b", tier.Options{FillBytes: memory})
			all := keys(0, 30)
			a.save(all...)
			a.flush()
			for layer := range layout.Shards() {
				var batch []kv.Shard
				for _, s := range shards(all, false) {
					if s.Index == layer {
						batch = append(batch, s)
					}
				}
				task, err := b.Load(t.Context(), batch)
				if err == nil {
					err = task.Wait(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if memory == 0 {
				b.eventually("all are kept", func() bool { return b.has(b.near, all...) == len(all) })
				return
			}
			b.eventually("those without memory are kept", func() bool { return b.has(b.near, all...) >= len(all)-4 })
		})
	}
}

// The stores disagree: each has blocks that the other lacks.
func TestStoresDisagree(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	h.save(keys(0, 10)...)
	h.flush()
	for _, n := range []int{1, 4, 5, 9} {
		if err := h.near.Delete(t.Context(), keys(n, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{0, 2, 7} {
		if err := h.far.Delete(t.Context(), keys(n, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := h.LookupPrefix(t.Context(), keys(0, 11)); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	if n := h.has(h, keys(0, 11)...); n != 10 {
		t.Errorf("%d are found", n)
	}
	h.load(keys(0, 10)...)
	seen := map[kv.Key]int{}
	for k, err := range h.Keys(t.Context()) {
		if seen[k]++; err != nil || seen[k] > 1 {
			t.Fatal(k, err)
		}
	}
	if len(seen) != 10 {
		t.Errorf("%d keys", len(seen))
	}
}

// A damaged block of the near store is loaded from the far one, also when shards of it have
// been loaded before the damage was met; it is counted, and kept near again.
func TestDamageIsHealed(t *testing.T) {
	for damaged := range layout.Shards() {
		dir := t.TempDir()
		h := hostOn(t, dir, "a", tier.Options{})
		h.save(keys(0, 5)...)
		h.flush()
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		damage(t, filepath.Join(dir, "a"), content(key(3), damaged))
		h = hostOn(t, dir, "a", tier.Options{})
		h.load(keys(0, 5)...)
		s := h.Stats()
		if s.CorruptBlocks != 1 || s.MissedShards != 0 || s.Next.CorruptBlocks != 0 || s.PassedBytes < layout.ShardBytes || s.PassedBytes > layout.BlockBytes {
			t.Errorf("shard %d: %+v", damaged, s)
		}
		h.eventually("it is near again", func() bool { return h.has(h.near, keys(0, 5)...) == 5 })
		h.far.Set(fault.Fault{Method: fault.Load, Err: syscall.EIO})
		h.load(keys(0, 5)...)
	}
}

// If the far store has other bytes under the key, they are not mixed with those of the near
// one.
func TestDamageIsNotHealedWithAnother(t *testing.T) {
	dir := t.TempDir()
	h := hostOn(t, dir, "a", tier.Options{})
	h.save(key(0))
	h.flush()
	if err := h.far.Delete(t.Context(), keys(0, 1)); err != nil {
		t.Fatal(err)
	}
	other := shards(keys(0, 1), true)
	for _, s := range other {
		s.Buf[9]++
	}
	task, err := h.far.Save(t.Context(), other)
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	h.near.Set(fault.Fault{Method: fault.Load, Where: func(_ kv.Key, index int) bool { return index == 1 }, Err: &kv.CorruptError{Where: "a test", What: "damaged"}})
	batch := shards(keys(0, 1), false)
	if task, err = h.Load(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for i, err := range task.All() {
		if (i == 1) != errors.Is(err, kv.ErrMiss) {
			t.Errorf("shard %d: %v", i, err)
		}
		if err == nil && !bytes.Equal(batch[i].Buf, content(key(0), i)) {
			t.Errorf("shard %d is another's", i)
		}
	}
}

// damage changes the stored bytes of a shard.
func damage(t *testing.T, dir string, shard []byte) {
	t.Helper()
	changed := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		at := bytes.Index(raw, shard)
		if at < 0 {
			return nil
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		changed++
		_, err = f.WriteAt([]byte{^shard[100]}, int64(at+100))
		return err
	})
	if err != nil || changed != 1 {
		t.Fatalf("the shard is in %d files, %v", changed, err)
	}
}

// While the far store hangs, what is near is found and loaded, saves succeed, the queue is
// bounded, and Flush says what did not arrive. When it answers again, what waited arrives.
func TestFarHangs(t *testing.T) {
	for _, why := range []error{kv.ErrTimeout, syscall.ETIMEDOUT, syscall.ENOTCONN} {
		t.Run(why.Error(), func(t *testing.T) { farHangs(t, why) })
	}
}

func farHangs(t *testing.T, why error) {
	const most = 8
	h := hostOn(t, t.TempDir(), "a", tier.Options{WaitingBlocks: most})
	h.save(keys(0, 4)...)
	h.flush()
	h.far.Set(hung(why)...)
	if n, err := h.LookupPrefix(h.bounded(), keys(0, 6)); n != 4 || err != nil {
		t.Fatalf("%d are found, %v", n, err)
	}
	asked := h.far.Hits()
	h.load(keys(0, 4)...)
	h.save(keys(10, 3*most)...)
	h.load(keys(10, 3*most)...)
	if n := h.has(h, keys(0, 100)...); n != 4+3*most {
		t.Errorf("%d are found", n)
	}
	if err := h.tryLoad(h.Store, key(99)); !errors.Is(err, kv.ErrTimeout) || !strings.Contains(err.Error(), "Posix") {
		t.Errorf("a load that only the far store could serve: %v", err)
	}
	if now := h.far.Hits(); now[2] > asked[2]+4*layout.Shards() {
		t.Errorf("a store that does not answer is asked again and again: %v, then %v", asked, now)
	}
	if n := h.Stats().UnsentBlocks; n > most {
		t.Errorf("%d blocks wait", n)
	}
	if err := h.Flush(h.bounded()); !errors.Is(err, kv.ErrTimeout) || !strings.Contains(err.Error(), "Posix") {
		t.Errorf("Flush: %v", err)
	}
	h.far.Set()
	h.eventually("what waited arrives", func() bool { return h.Stats().UnsentBlocks == 0 })
	if err := h.Flush(h.bounded()); err != nil {
		t.Errorf("Flush, when all that waits has arrived: %v", err)
	}
	if n := h.has(h.far, keys(10, 3*most)...); n < most/2 {
		t.Errorf("%d have arrived", n)
	}
}

// Close ends while the far store hangs, and says what did not get there.
func TestCloseWhileFarHangs(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	h.far.Set(hung(kv.ErrTimeout)...)
	h.save(keys(0, 5)...)
	closed := make(chan error, 1)
	go func() { closed <- h.Close() }()
	select {
	case err := <-closed:
		if !errors.Is(err, kv.ErrTimeout) || !strings.Contains(err.Error(), "5 blocks did not get from Segment to Posix") {
			t.Errorf("Close: %v", err)
		}
	case <-h.bounded().Done():
		t.Fatal("Close does not return")
	}
}

// What was read from far shortly before Close is near afterwards.
func TestCloseKeeps(t *testing.T) {
	dir := t.TempDir()
	a, b := hostOn(t, dir, "a", tier.Options{}), hostOn(t, dir, "b", tier.Options{})
	a.save(keys(0, 50)...)
	a.flush()
	b.load(keys(0, 50)...)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = hostOn(t, dir, "b", tier.Options{})
	if n := b.has(b.near, keys(0, 50)...); n != 50 {
		t.Errorf("%d are near", n)
	}
}

// A far store that fails, or is full, is tried again; Flush says so.
func TestFarFails(t *testing.T) {
	for _, why := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EDQUOT} {
		h := hostOn(t, t.TempDir(), "a", tier.Options{})
		h.far.Set(fault.Fault{Method: fault.Save, Err: why})
		h.save(keys(0, 5)...)
		h.load(keys(0, 5)...)
		err := h.Flush(h.bounded())
		if !errors.Is(err, why) || !strings.Contains(err.Error(), "5 blocks of Segment are not in Posix yet") {
			t.Errorf("Flush: %v", err)
		}
		h.far.Set()
		h.flush()
		if n := h.has(h.far, keys(0, 5)...); n != 5 {
			t.Errorf("%d have arrived", n)
		}
		h.far.Set(fault.Fault{Method: fault.Save, Err: why})
		h.save(keys(5, 2)...)
		if err := h.Close(); !errors.Is(err, why) || !strings.Contains(err.Error(), "2 blocks did not get from Segment to Posix") {
			t.Errorf("Close: %v", err)
		}
	}
}

// A block that is gone from the near store before it was sent is counted.
func TestEvictedBeforeItWasSent(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	hold := make(chan struct{})
	h.far.Set(fault.Fault{Method: fault.Lookup, Hold: hold})
	h.save(key(0))
	h.eventually("a sender has it", func() bool { return h.far.Hits()[0] > 0 })
	if err := h.near.Delete(t.Context(), keys(0, 1)); err != nil {
		t.Fatal(err)
	}
	close(hold)
	if err := h.Flush(h.bounded()); err == nil || !strings.Contains(err.Error(), "1 blocks did not get from Segment to Posix") {
		t.Errorf("Flush: %v", err)
	}
	if n := h.Stats().DroppedBlocks; n != 1 {
		t.Errorf("%d dropped", n)
	}
}

// What the near store does not take goes to the far one.
func TestNearIsFull(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	h.near.Set(fault.Fault{Method: fault.Save, Err: kv.ErrFull})
	h.save(keys(0, 3)...)
	if n := h.has(h.far, keys(0, 3)...); n != 3 {
		t.Errorf("%d are far", n)
	}
	h.load(keys(0, 3)...)
	// A part of a block stays with its other parts.
	task, err := h.Save(t.Context(), shards(keys(9, 1), true)[:1])
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(t.Context()); !errors.Is(err, kv.ErrFull) || !strings.Contains(err.Error(), "Segment") {
		t.Errorf("a part of a block: %v", err)
	}
}

// Parts of a block in several batches are sent when the block is whole.
func TestPartsAreSentWhenWhole(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	all := shards(keys(0, 1), true)
	for _, s := range all {
		task, err := h.Save(t.Context(), []kv.Shard{s})
		if err == nil {
			err = task.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	h.flush()
	if h.has(h.far, key(0)) != 1 {
		t.Error("it is not far")
	}
}

// With WriteThrough a save is done when the far store has the block, and fails when it fails.
func TestWriteThrough(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{WriteThrough: true})
	hold := make(chan struct{})
	h.far.Set(fault.Fault{Method: fault.Save, Hold: hold})
	task, err := h.Save(t.Context(), shards(keys(0, 2), true))
	if err != nil {
		t.Fatal(err)
	}
	h.eventually("the near store has both", func() bool { return h.has(h.near, keys(0, 2)...) == 2 })
	if _, settled := task.Result(0); settled {
		t.Error("a save is done before the far store has the block")
	}
	close(hold)
	if err := task.Wait(h.bounded()); err != nil {
		t.Fatal(err)
	}
	if h.has(h.far, keys(0, 2)...) != 2 {
		t.Error("a save is done and the far store does not have the block")
	}
	h.far.Set(fault.Fault{Method: fault.Save, Err: syscall.EIO})
	if err := h.trySave(key(5)); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "Posix") {
		t.Errorf("saving: %v", err)
	}
}

// What loads bring near, and what is being sent, does not come back after Delete.
func TestDeletedStaysDeleted(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	for round := range 60 {
		k := key(round)
		h.save(k)
		if round%2 == 0 { // else it is being sent
			h.flush()
			if err := h.near.Delete(t.Context(), []kv.Key{k}); err != nil {
				t.Fatal(err)
			}
		}
		var loads sync.WaitGroup
		for range 3 {
			loads.Go(func() {
				if err := h.tryLoad(h.Store, k); err != nil && !errors.Is(err, kv.ErrMiss) {
					t.Errorf("loading: %v", err)
				}
			})
		}
		h.Prefetch([]kv.Key{k})
		if err := h.Delete(t.Context(), []kv.Key{k}); err != nil {
			t.Fatal(err)
		}
		if h.has(h, k) != 0 {
			t.Fatal("found after Delete")
		}
		loads.Wait()
	}
	h.flush()
	if n := h.has(h, keys(0, 60)...); n != 0 {
		t.Errorf("%d blocks came back", n)
	}
}
