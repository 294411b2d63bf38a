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

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/usrbio"
)

// ucmWorkers is the default stream_number of UCM's Ds3fs.
const ucmWorkers = 32

// ucm moves blocks as UCM's Ds3fs does: for each block a worker opens and registers its
// file, has one request in flight, copies, deregisters and closes.
type ucm struct {
	dir     string // of the blocks, in the mount
	bufs    [][]byte
	mount   *usrbio.Mount
	workers []ucmWorker
}

type ucmWorker struct {
	read, write *usrbio.Ring
	iov         *usrbio.Iov
}

// openUCM opens UCM's way to the blocks below dir, which is in the mount.
func openUCM(ctx context.Context, mountPoint, dir string, shardBytes int64, bufs [][]byte) (_ *ucm, err error) {
	u := &ucm{dir: dir, bufs: bufs}
	if u.mount, err = usrbio.Open(ctx, mountPoint); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = u.close() // err is the first error
		}
	}()
	for range min(ucmWorkers, len(bufs)) {
		var w ucmWorker
		if w.iov, err = newIov(ctx, u.mount, shardBytes); err != nil {
			return nil, err
		}
		if w.read, err = u.mount.NewRing(ctx, usrbio.RingOptions{Entries: 1, IODepth: 1}); err != nil {
			return nil, err
		}
		if w.write, err = u.mount.NewRing(ctx, usrbio.RingOptions{Entries: 1, IODepth: 1, Write: true}); err != nil {
			return nil, err
		}
		u.workers = append(u.workers, w)
	}
	return u, nil
}

func (u *ucm) way() *way { return &way{load: u.load, parts: u.bufs, close: u.close} }

func (u *ucm) close() error { return u.mount.Close(context.Background()) }

func (u *ucm) load(ctx context.Context, set *blocks) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	return inTurn(len(u.workers), set.layout.ByBlock(set.keys, u.bufs), func(worker int, s kvstore.Shard) error {
		return u.workers[worker].load(ctx, u.mount, blockPath(u.dir, s.Key), s)
	})
}

// save leaves whole blocks as UCM does.
func (u *ucm) save(ctx context.Context, set *blocks) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	return saveBlocks(u.dir, len(u.workers), set, u.bufs, func(worker int, path string, s kvstore.Shard) error {
		return u.workers[worker].save(ctx, u.mount, path, s)
	})
}

// saveBlocks has workers write blocks below dir, each under a temporary name that then gives way to its own.
func saveBlocks(dir string, workers int, set *blocks, bufs [][]byte, write func(worker int, path string, s kvstore.Shard) error) error {
	temp := filepath.Join(dir, ".temp")
	if err := os.MkdirAll(temp, 0o744); err != nil {
		return err
	}
	return inTurn(workers, set.layout.ByBlock(set.keys, bufs), func(worker int, s kvstore.Shard) error {
		path, unfinished := blockPath(dir, s.Key), filepath.Join(temp, s.Key.String())
		if err := write(worker, unfinished, s); err != nil {
			return err
		}
		if err := os.Mkdir(filepath.Dir(path), 0o744); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		return os.Rename(unfinished, path)
	})
}

// inTurn has workers move shards, each the next one as soon as it is free.
func inTurn(workers int, shards []kvstore.Shard, move func(worker int, s kvstore.Shard) error) error {
	var (
		wg     sync.WaitGroup
		next   atomic.Int64
		failed = make([]error, workers)
	)
	for i := range workers {
		wg.Go(func() {
			for failed[i] == nil {
				n := int(next.Add(1)) - 1
				if n >= len(shards) {
					return
				}
				failed[i] = move(i, shards[n])
			}
		})
	}
	wg.Wait()
	return cmp.Or(failed...) // they are mostly the same
}

func (w ucmWorker) load(ctx context.Context, m *usrbio.Mount, path string, s kvstore.Shard) error {
	f, err := registerAs(ctx, m, path, os.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close(ctx) }() // it was only read
	if err := w.move(ctx, w.read, f, s); err != nil {
		return err
	}
	copy(s.Buf, w.iov.Bytes())
	return nil
}

func (w ucmWorker) save(ctx context.Context, m *usrbio.Mount, path string, s kvstore.Shard) error {
	f, err := registerAs(ctx, m, path, os.O_WRONLY|os.O_CREATE|unix.O_DIRECT)
	if err != nil {
		return err
	}
	copy(w.iov.Bytes(), s.Buf)
	return errors.Join(w.move(ctx, w.write, f, s), f.Close(ctx))
}

// move has the daemon move a shard between its file and the worker's iov.
func (w ucmWorker) move(ctx context.Context, r *usrbio.Ring, f *usrbio.File, s kvstore.Shard) error {
	size := int64(len(s.Buf))
	if _, err := r.Prepare(usrbio.Request{File: f, FileOffset: int64(s.Index) * size, Iov: w.iov, Bytes: size}); err != nil {
		return err
	}
	if err := r.Submit(); err != nil {
		return err
	}
	var done [1]usrbio.Completion
	if _, err := r.Wait(ctx, done[:], 1); err != nil {
		return err
	}
	if done[0].Result != size {
		return errors.Join(fmt.Errorf("a shard of %d bytes: %d were moved", size, done[0].Result), done[0].Err())
	}
	return nil
}
