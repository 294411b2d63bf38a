package storebench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	return registerAs(ctx, m, path, os.O_RDONLY)
}

func registerAs(ctx context.Context, m *usrbio.Mount, path string, flags int) (*usrbio.File, error) {
	f, err := os.OpenFile(path, flags, 0o644)
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
