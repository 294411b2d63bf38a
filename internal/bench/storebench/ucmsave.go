package storebench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore"
)

// ucmSaves returns plain threads and UCM's way through each daemon to save the blocks in bufs into new files.
func (b *bench) ucmSaves(daemons []ucmDaemon, name string, size int64, set *blocks, bufs [][]byte) []*contender {
	// A save is what a contender calls a load. It has no parts, which would be spoilt before it.
	saving := func(save func(context.Context, *blocks) error, data string, close func() error) *way {
		return &way{load: save, close: close, verify: func(int) error { return verifySaved(data, set, bufs) }}
	}
	plain := filepath.Join(daemons[0].Data, name)
	all := []*contender{{
		name:   WayPlain,
		before: func() error { return os.RemoveAll(plain) },
		open: func(context.Context) (*way, error) {
			own, err := newBuffers(min(ucmWorkers, len(bufs)), size)
			if err != nil {
				return nil, err
			}
			p := &plainThreads{dir: plain, flags: os.O_WRONLY | os.O_CREATE, bufs: bufs, own: own}
			if b.o.IO == "direct" { // as the daemon writes then
				p.flags |= unix.O_DIRECT
			}
			return saving(p.save, plain, own.close), nil
		},
	}}
	for _, d := range daemons {
		data, mount := filepath.Join(d.Data, name), filepath.Join(d.Mount, name)
		all = append(all, &contender{
			name:   d.way,
			before: func() error { return os.RemoveAll(mount) },
			open: func(ctx context.Context) (*way, error) {
				u, err := openUCM(ctx, d.Mount, mount, size, bufs)
				if err != nil {
					return nil, err
				}
				return saving(u.save, data, u.close), nil
			},
		})
	}
	return all
}

// save does by system calls in the data directory what UCM's way does.
func (p *plainThreads) save(_ context.Context, set *blocks) error {
	return saveBlocks(p.dir, len(p.own.parts), set, p.bufs, func(thread int, path string, s kvstore.Shard) error {
		f, err := os.OpenFile(path, p.flags, 0o644)
		if errors.Is(err, unix.EINVAL) {
			f, err = os.OpenFile(path, p.flags&^unix.O_DIRECT, 0o644) // no direct I/O here, as for the daemon
		}
		if err != nil {
			return err
		}
		buf := p.own.parts[thread]
		copy(buf, s.Buf)
		n, err := unix.Pwrite(int(f.Fd()), buf, 0)
		if err == nil && n != len(buf) {
			err = fmt.Errorf("a shard of %d bytes: %d were written", len(buf), n)
		}
		return errors.Join(err, f.Close())
	})
}

// verifySaved reads the blocks from the data directory, by none of the ways that are measured, into bufs, and checks them.
func verifySaved(data string, set *blocks, bufs [][]byte) error {
	for i, key := range set.keys {
		spoil(bufs[i])
		f, err := os.Open(blockPath(data, key))
		if err != nil {
			return err
		}
		n, err := f.ReadAt(bufs[i], 0)
		f.Close()
		if err != nil {
			return fmt.Errorf("block %s: %d bytes: %w", key, n, err)
		}
		if err := set.check(i, bufs[i]); err != nil {
			return err
		}
	}
	return nil
}
