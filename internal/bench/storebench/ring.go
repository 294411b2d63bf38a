package storebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/usrbio"
)

// waitLimit bounds how long a daemon may take for a load.
const waitLimit = time.Minute

// blockPath returns where UCM, and so Ds3fs, keeps a block.
func blockPath(mount string, key kvstore.Key) string {
	name := key.String()
	return filepath.Join(mount, name[:2], name)
}

// plainRing is what Ds3fs is compared with: one ring on the same files, opened and
// registered before, that reads each block into its place in an iov.
type plainRing struct {
	mount *usrbio.Mount
	ring  *usrbio.Ring
	iov   *usrbio.Iov
	files map[kvstore.Key]*usrbio.File
	done  []usrbio.Completion
}

func openPlainRing(ctx context.Context, mountPoint string, sets []*blocks, depth int) (_ *way, err error) {
	r := &plainRing{files: map[kvstore.Key]*usrbio.File{}, done: make([]usrbio.Completion, depth)}
	if r.mount, err = usrbio.Open(ctx, mountPoint); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = r.close() // err is the first error
		}
	}()
	size := sets[0].layout.BlockBytes
	if r.iov, err = newIov(ctx, r.mount, int64(len(sets[0].keys))*size); err != nil {
		return nil, err
	}
	if r.ring, err = r.mount.NewRing(ctx, usrbio.RingOptions{Entries: depth}); err != nil {
		return nil, err
	}
	for _, set := range sets {
		for _, key := range set.keys {
			if r.files[key], err = register(ctx, r.mount, blockPath(mountPoint, key)); err != nil {
				return nil, err
			}
		}
	}
	return &way{load: r.load, parts: cut(r.iov.Bytes(), size), close: r.close}, nil
}

func newIov(ctx context.Context, m *usrbio.Mount, sizeBytes int64) (*usrbio.Iov, error) {
	v, err := m.NewIov(ctx, sizeBytes, usrbio.IovOptions{Reserve: true})
	if err != nil {
		return nil, err
	}
	return v, v.Unlink() // if we are killed, no memory is left behind
}

func register(ctx context.Context, m *usrbio.Mount, path string) (*usrbio.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return m.Register(ctx, f)
}

// load keeps the ring full and waits for half of it at a time, so that the daemon always
// has the other half to work on.
func (r *plainRing) load(ctx context.Context, set *blocks) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	size := set.layout.BlockBytes
	for next, pending := 0, 0; next < len(set.keys) || pending > 0; {
		for next < len(set.keys) && pending < len(r.done) {
			if _, err := r.ring.Prepare(usrbio.Request{File: r.files[set.keys[next]], Iov: r.iov, IovOffset: int64(next) * size, Bytes: size}); err != nil {
				return err
			}
			next++
			pending++
		}
		if err := r.ring.Submit(); err != nil {
			return err
		}
		n, err := r.ring.Wait(ctx, r.done, (pending+1)/2)
		for _, c := range r.done[:n] {
			if c.Result != size {
				return errors.Join(fmt.Errorf("a block of %d bytes: %d arrived", size, c.Result), c.Err())
			}
		}
		if err != nil {
			return err
		}
		pending -= n
	}
	return nil
}

func (r *plainRing) close() error { return r.mount.Close(context.Background()) }

// ucmWorkers is the default stream_number of UCM's Ds3fs.
const ucmWorkers = 32

// ucm loads as UCM's Ds3fs does: for each block a worker opens and registers its file,
// has one request in flight, copies, deregisters and closes.
type ucm struct {
	mountPoint string
	bufs       *buffers
	mount      *usrbio.Mount
	workers    []ucmWorker
}

type ucmWorker struct {
	ring *usrbio.Ring
	iov  *usrbio.Iov
}

func openUCM(ctx context.Context, mountPoint string, l kvstore.Layout, bufs *buffers) (_ *way, err error) {
	u := &ucm{mountPoint: mountPoint, bufs: bufs}
	if u.mount, err = usrbio.Open(ctx, mountPoint); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = u.close() // err is the first error
		}
	}()
	for range min(ucmWorkers, len(bufs.parts)) {
		var w ucmWorker
		if w.iov, err = newIov(ctx, u.mount, l.ShardBytes); err != nil {
			return nil, err
		}
		if w.ring, err = u.mount.NewRing(ctx, usrbio.RingOptions{Entries: 1, IODepth: 1}); err != nil {
			return nil, err
		}
		u.workers = append(u.workers, w)
	}
	return &way{load: u.load, parts: bufs.parts, close: u.close}, nil
}

func (u *ucm) close() error { return u.mount.Close(context.Background()) }

func (u *ucm) load(ctx context.Context, set *blocks) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	var (
		wg     sync.WaitGroup
		next   atomic.Int64
		failed = make([]error, len(u.workers))
	)
	shards := set.layout.ByBlock(set.keys, u.bufs.parts)
	for i, w := range u.workers {
		wg.Go(func() {
			for failed[i] == nil {
				n := int(next.Add(1)) - 1
				if n >= len(shards) {
					return
				}
				failed[i] = w.load(ctx, u.mount, blockPath(u.mountPoint, shards[n].Key), shards[n])
			}
		})
	}
	wg.Wait()
	return cmp.Or(failed...) // they are mostly the same
}

func (w ucmWorker) load(ctx context.Context, m *usrbio.Mount, path string, s kvstore.Shard) error {
	f, err := register(ctx, m, path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close(ctx) }() // it was only read
	size := int64(len(s.Buf))
	if _, err := w.ring.Prepare(usrbio.Request{File: f, FileOffset: int64(s.Index) * size, Iov: w.iov, Bytes: size}); err != nil {
		return err
	}
	if err := w.ring.Submit(); err != nil {
		return err
	}
	var done [1]usrbio.Completion
	if _, err := w.ring.Wait(ctx, done[:], 1); err != nil {
		return err
	}
	if done[0].Result != size {
		return errors.Join(fmt.Errorf("a shard of %d bytes: %d arrived", size, done[0].Result), done[0].Err())
	}
	copy(s.Buf, w.iov.Bytes())
	return nil
}
