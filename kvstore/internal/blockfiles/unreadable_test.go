package blockfiles

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// badFile is an engine that cannot read one file, or not open it.
type badFile struct {
	transfer.Engine
	err   syscall.Errno
	opens bool // opening it fails as well
	ino   atomic.Uint64
	mine  map[transfer.File]uint64
}

func (b *badFile) Open(f *os.File) (transfer.File, error) {
	st, err := status(int(f.Fd()), "")
	if err != nil {
		return nil, err
	}
	if b.opens && st.Ino == b.ino.Load() {
		return nil, b.err
	}
	file, err := b.Engine.Open(f)
	b.mine[file] = st.Ino // the test opens one file at a time
	return file, err
}

func (b *badFile) Do(ctx context.Context, ops []transfer.Op) {
	for _, op := range ops {
		if !op.Write && b.mine[op.File] == b.ino.Load() {
			op.Done(0, b.err)
			continue
		}
		b.Engine.Do(ctx, []transfer.Op{op})
	}
}

// A block that cannot be read is saved again, into another file, and is there then.
func TestUnreadableBlockHeals(t *testing.T) {
	for _, err := range []syscall.Errno{syscall.EIO, syscall.EBADMSG, syscall.EUCLEAN, syscall.ENODATA, syscall.EILSEQ, syscall.EREMOTEIO} {
		t.Run("read: "+err.Error(), func(t *testing.T) { heals(t, &badFile{err: err}) })
		t.Run("open: "+err.Error(), func(t *testing.T) { heals(t, &badFile{err: err, opens: true}) })
	}
	for _, err := range []syscall.Errno{syscall.EACCES, syscall.ESTALE} {
		t.Run("open: "+err.Error(), func(t *testing.T) { heals(t, &badFile{err: err, opens: true}) })
	}
}

func heals(t *testing.T, bad *badFile) {
	l := kv.Layout{BlockBytes: 1000, ShardBytes: 500}
	bad.mine = map[transfer.File]uint64{}
	s := openOver(t, Options{Layout: l}, func(e transfer.Engine) transfer.Engine {
		bad.Engine = e
		return bad
	})
	key := kv.Key{1}
	shards := l.ByBlock([]kv.Key{key}, [][]byte{make([]byte, l.BlockBytes)})
	do := func(move func(context.Context, []kv.Shard) (*kv.Task, error)) error {
		t.Helper()
		task, err := move(t.Context(), shards)
		if err != nil {
			t.Fatal(err)
		}
		return task.Wait(t.Context())
	}
	there := func() bool {
		t.Helper()
		n, err := s.LookupPrefix(t.Context(), []kv.Key{key})
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
	if err := do(s.Save); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(s.path(s.roots[0], key))
	if err != nil {
		t.Fatal(err)
	}
	bad.ino.Store(st.Sys().(*syscall.Stat_t).Ino)
	for _, h := range s.handles.close() { // so that Load opens the file
		_ = h.file.Close()
	}
	for range 3 {
		if err := do(s.Load); !errors.Is(err, bad.err) && (bad.err != syscall.ESTALE || !errors.Is(err, kv.ErrMiss)) {
			t.Fatal(err)
		}
	}
	if there() {
		t.Error("it is said to be there")
	}
	if err := do(s.Save); err != nil {
		t.Error(err)
	}
	if err := do(s.Load); err != nil || !there() {
		t.Errorf("saved again: there %v, %v", there(), err)
	}
}
