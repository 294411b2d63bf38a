package objects

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// hanging is a backend of which some calls end only with their context.
type hanging struct {
	dir
	inHas, inGet bool
	calls        *atomic.Int32 // that hang
}

func (h hanging) hang(ctx context.Context) error {
	h.calls.Add(1)
	<-ctx.Done()
	return ctx.Err()
}

func (h hanging) Has(ctx context.Context, names []string, found []bool) error {
	if h.inHas {
		return h.hang(ctx)
	}
	return h.dir.Has(ctx, names, found)
}

func (h hanging) Get(ctx context.Context, name string, off int64, buf []byte) error {
	if h.inGet && off > 0 {
		return h.hang(ctx)
	}
	return h.dir.Get(ctx, name, off, buf)
}

// results are the errors of a task's shards.
func results(task *kv.Task) (all []error) {
	for i := range task.Len() {
		err, _ := task.Result(i)
		all = append(all, err)
	}
	return all
}

// backwards are the shards of a block, so that no two of them are one run.
func backwards(key kv.Key, buf []byte) (all []kv.Shard) {
	for i := layout.Shards() - 1; i >= 0; i-- {
		all = append(all, kv.Shard{Key: key, Index: i, Buf: buf[int64(i)*layout.ShardBytes:][:layout.ShardBytes]})
	}
	return all
}

// A backend that answers nothing costs a block one timeout, not one for each of its shards.
func TestBackendThatHangsIsAskedOnce(t *testing.T) {
	for name, h := range map[string]hanging{"load": {inGet: true}, "save": {inHas: true}} {
		t.Run(name, func(t *testing.T) {
			d := dir(t.TempDir())
			whole := openBroken(d, 10*time.Second)
			if err := move(t, whole.Save, kv.Key{1}, content()); err != nil {
				t.Fatal(err)
			}
			if err := whole.Close(); err != nil {
				t.Fatal(err)
			}
			h.dir, h.calls = d, new(atomic.Int32)
			s := openBroken(h, 50*time.Millisecond)
			do, key := s.Load, kv.Key{1}
			if name == "save" {
				do, key = s.Save, kv.Key{2}
			}
			task, err := do(t.Context(), backwards(key, content()))
			if err != nil {
				t.Fatal(err)
			}
			_ = task.Wait(t.Context())
			for i, err := range results(task) {
				if !errors.Is(err, kv.ErrTimeout) || errors.Is(err, kv.ErrAbandoned) != (name == "load" && i == 0) {
					t.Errorf("shard %d: %v", i, err)
				}
			}
			if n := h.calls.Load(); n != 1 {
				t.Errorf("it was asked %d times", n)
			}
			_ = s.Close()
		})
	}
}

// Also without checksums, what a load returns of a block is of one save.
func TestObjectThatIsReplacedDuringALoad(t *testing.T) {
	for _, checksums := range []kv.Checksums{kv.ChecksumsAuto, kv.ChecksumsOff} {
		d, other := dir(t.TempDir()), dir(t.TempDir())
		key, old, anew := kv.Key{1}, content(), bytes.ToUpper(content())
		for to, bytes := range map[dir][]byte{d: old, other: anew} {
			s := openBroken(to, 10*time.Second)
			if err := move(t, s.Save, key, bytes); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		replaced := false
		s := New(broken{dir: d, get: func(ctx context.Context, name string, off int64, buf []byte) error {
			err := d.Get(ctx, name, off, buf)
			if off > 0 && !replaced && err == nil {
				replaced = true
				object := make([]byte, 4096+layout.BlockBytes)
				if err := other.Get(ctx, name, 0, object); err != nil {
					return err
				}
				return d.Put(ctx, name, object)
			}
			return err
		}}, Options{Name: "Mine", Layout: layout, Timeout: 10 * time.Second, Checksums: checksums})
		buf := make([]byte, layout.BlockBytes)
		task, err := s.Load(t.Context(), backwards(key, buf))
		if err != nil {
			t.Fatal(err)
		}
		_ = task.Wait(t.Context())
		first, second := buf[layout.ShardBytes:], buf[:layout.ShardBytes]
		errs := results(task)
		if errs[0] == nil && errs[1] == nil && (bytes.Equal(first, old[layout.ShardBytes:]) != bytes.Equal(second, old[:layout.ShardBytes])) {
			t.Errorf("checksums %s: the load returned a half of each save", checksums)
		}
		for i, err := range errs {
			if err != nil && !errors.Is(err, kv.ErrMiss) {
				t.Errorf("checksums %s: shard %d: %v", checksums, i, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// lateList is a backend whose list hangs until it is released, and then goes on.
type lateList struct {
	dir
	release, ended chan struct{}
}

func (l lateList) List(_ context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		defer close(l.ended)
		<-l.release
		for n := range 3 * mostNames {
			if !yield(prefix+kv.Key{byte(n >> 8), byte(n)}.String(), nil) {
				return
			}
		}
	}
}

// A list that comes too late is ended nevertheless, so that the backend can release what it
// holds for it.
func TestListThatHangsIsEnded(t *testing.T) {
	l := lateList{dir(t.TempDir()), make(chan struct{}), make(chan struct{})}
	s := openBroken(l, 50*time.Millisecond)
	var failed error
	for _, err := range s.Keys(t.Context()) {
		failed = err
	}
	if !errors.Is(failed, kv.ErrTimeout) {
		t.Errorf("Keys: %v", failed)
	}
	close(l.release)
	select {
	case <-l.ended:
	case <-time.After(10 * time.Second):
		t.Error("the list was not ended")
	}
	if err := s.Close(); err != nil && !errors.Is(err, kv.ErrAbandoned) {
		t.Error(err)
	}
}
