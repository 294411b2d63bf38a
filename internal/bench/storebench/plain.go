package storebench

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore"
)

// plainThreads is what UCM's way is compared with: as many threads open, read, copy and
// close the same files in the data directory, past the page cache.
type plainThreads struct {
	dir   string // of the blocks, in the data directory
	mount string // of the blocks, in the mount, where the threads open and close them as well; "": they do not
	flags int    // to open them
	bufs  [][]byte
	own   *buffers // one for each thread, as UCM's workers have iovs
}

// openPlain opens the files with O_DIRECT, or through the page cache if direct is false. With
// a mount, the threads do what every client of a 3FS has to do at least: open and close each
// file there.
func openPlain(dir, mount string, direct bool, shardBytes int64, bufs [][]byte) (*way, error) {
	own, err := newBuffers(min(ucmWorkers, len(bufs)), shardBytes)
	if err != nil {
		return nil, err
	}
	p := &plainThreads{dir: dir, mount: mount, flags: os.O_RDONLY, bufs: bufs, own: own}
	if direct {
		p.flags |= unix.O_DIRECT
	}
	return &way{load: p.load, parts: bufs, close: own.close}, nil
}

func (p *plainThreads) load(_ context.Context, set *blocks) error {
	return inTurn(len(p.own.parts), set.layout.ByBlock(set.keys, p.bufs), func(thread int, s kvstore.Shard) error {
		if p.mount != "" {
			opened, err := os.Open(blockPath(p.mount, s.Key))
			if err != nil {
				return err
			}
			defer opened.Close()
		}
		f, err := os.OpenFile(blockPath(p.dir, s.Key), p.flags, 0)
		if errors.Is(err, unix.EINVAL) {
			f, err = os.Open(blockPath(p.dir, s.Key)) // no direct I/O here, as for the daemon
		}
		if err != nil {
			return err
		}
		defer f.Close()
		buf := p.own.parts[thread]
		n, err := unix.Pread(int(f.Fd()), buf, int64(s.Index)*int64(len(buf)))
		if err != nil || n != len(buf) {
			return errors.Join(fmt.Errorf("a shard of %d bytes: %d arrived", len(buf), n), err)
		}
		copy(s.Buf, buf)
		return nil
	})
}
