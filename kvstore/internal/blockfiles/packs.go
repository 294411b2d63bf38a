package blockfiles

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
)

// Packed is a Format whose other program may put some consecutive blocks of a prompt, a
// pack, into one file. The key of a block does not tell the file, so the store looks for
// packs when LookupPrefix shows it the blocks of a prompt in their order, and remembers
// where they are. It never writes one.
type Packed interface {
	Format

	// MostPacked returns how many blocks a pack has at most; below 2 there are none.
	MostPacked() int

	// Pack returns the path, relative to the root, of the file of these blocks, at least
	// two, and whether there can be one. They lie in it one after the other.
	Pack(keys []kv.Key) (path string, ok bool)

	// NamesAll reports whether the path of a pack depends on all its blocks.
	NamesAll() bool

	// InPack reports whether a block is whole in a pack of so many whose file has no hole
	// in its first bytes, which are not more than those of all blocks.
	InPack(bytes int64, block, blocks int) bool
}

// pack is where a block is in a pack.
type pack struct {
	root          *root
	path          string
	block, blocks int
	before        kv.Key // the block before it, unless it is the first
	keys          uint64 // a checksum of the keys of all blocks
}

// packs remembers the packs of blocks that LookupPrefix has seen. A Lookup or a Load of
// such a block then needs its key alone.
//
// A name that has the first and the last key alone, as RTP-LLM's, says which blocks are
// between them only if keys are chained: the last then stands for all before it. If two
// lookups name different blocks for one pack, or have a block follow different ones, the keys are
// not, and none of these packs' blocks is returned from then on.
type packs struct {
	mu         sync.Mutex
	young, old map[kv.Key]pack
	keys       map[string]uint64 // by path: pack.keys, or disputed
}

// disputed is in place of the keys of a pack that was looked up with different ones.
const disputed = 0

// mostYoung bounds the memory: about twice as many blocks are remembered, of about 170
// bytes each.
const mostYoung = 1 << 16

// learn remembers the first blocks of a pack, of whose file all blocks have these keys, and
// reports whether it may have them. It is one step: of two lookups that dispute each other's
// packs, whichever comes second finds what the first has remembered. named says that the path
// depends on all keys.
func (ps *packs) learn(p pack, keys []kv.Key, first int, named bool) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.keys = sumOfKeys(keys)
	if !ps.isOfLocked(p.path, p.keys) || !named && !ps.followLocked(p.path, keys) {
		return false
	}
	for p.block = range first {
		if p.block > 0 {
			p.before = keys[p.block-1]
		}
		ps.addLocked(keys[p.block], p)
	}
	return true
}

// isOfLocked reports whether a pack may have the blocks with these keys: nobody has looked it
// up with others.
func (ps *packs) isOfLocked(path string, keys uint64) bool {
	known, ok := ps.keys[path]
	switch {
	case !ok && len(ps.keys) >= 2*mostYoung:
		ps.young, ps.old, ps.keys = nil, nil, nil
		fallthrough
	case !ok:
		if ps.keys == nil {
			ps.keys = map[string]uint64{}
		}
		ps.keys[path] = keys
		return true
	case known != keys:
		ps.keys[path] = disputed
		return false
	}
	return true
}

// followLocked reports whether the blocks of a pack with these keys may follow each other: none of
// them follows another one in a pack that is known.
func (ps *packs) followLocked(path string, keys []kv.Key) bool {
	may := true
	for i, key := range keys[1:] {
		if p, ok := ps.findLocked(key); ok && p.block > 0 && p.before != keys[i] {
			may = false
			ps.keys[p.path] = disputed
		}
	}
	if !may {
		ps.keys[path] = disputed
	}
	return may
}

func (ps *packs) addLocked(key kv.Key, p pack) {
	if ps.young == nil || len(ps.young) >= mostYoung {
		ps.young, ps.old = map[kv.Key]pack{}, ps.young
	}
	ps.young[key] = p
}

func (ps *packs) find(key kv.Key) (pack, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.findLocked(key)
}

func (ps *packs) findLocked(key kv.Key) (pack, bool) {
	p, ok := ps.young[key]
	if !ok {
		p, ok = ps.old[key]
	}
	return p, ok && ps.keys[p.path] == p.keys
}

func (ps *packs) forget(key kv.Key) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.young, key)
	delete(ps.old, key)
}

// sumOfKeys returns a checksum of keys that is not disputed.
func sumOfKeys(keys []kv.Key) uint64 {
	raw := make([]byte, 0, len(keys)*len(kv.Key{}))
	for _, key := range keys {
		raw = append(raw, key[:]...)
	}
	return max(blockhead.Sum(raw), disputed+1)
}

// LookupPacks returns how many of the first of some consecutive blocks are in packs that begin
// with the first of them.
func (s *Store) LookupPacks(ctx context.Context, keys []kv.Key) (int, error) {
	return s.findPacks(ctx, keys)
}

// findPacks looks for packs that begin with the first of some consecutive blocks, and
// returns how many of the blocks they have.
func (s *Store) findPacks(ctx context.Context, keys []kv.Key) (int, error) {
	format, ok := s.o.Format.(Packed)
	if !ok || s.o.Checksums == kv.ChecksumsRequire || len(keys) == 0 {
		return 0, nil
	}
	n := 0
	_, err := s.scan(ctx, s.lookups, keys[:1], func(int, kv.Key, time.Time) (bool, error) {
		for ctx.Err() == nil {
			more := s.firstPack(format, keys[n:])
			if n += more; more == 0 {
				break
			}
		}
		return n > 0, nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// firstPack remembers the blocks of a pack that begins with the first of these, and
// returns how many there are without a gap.
func (s *Store) firstPack(format Packed, keys []kv.Key) (n int) {
	for blocks := min(format.MostPacked(), len(keys)); blocks > 1; blocks-- {
		path, ok := format.Pack(keys[:blocks])
		if !ok {
			continue
		}
		for _, r := range s.roots {
			p := pack{root: r, path: filepath.Join(r.dir, path), blocks: blocks}
			f, bytes, err := s.openPack(p)
			if err != nil {
				continue
			}
			f.Close()
			for n = 0; n < blocks && format.InPack(bytes, n, blocks); {
				n++
			}
			if s.packs.learn(p, keys[:blocks], n, format.NamesAll()) && n > 0 {
				return n
			}
		}
	}
	return 0
}

// openPack opens the file of a pack, and returns how many bytes it has before the first
// hole. What is no pack does not exist.
func (s *Store) openPack(p pack) (_ *os.File, bytes int64, err error) {
	f, err := s.openFile(p.path)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	st, err := status(int(f.Fd()), "")
	if err != nil {
		return nil, 0, &os.PathError{Op: "stat", Path: p.path, Err: err}
	}
	bytes = int64(st.Size)
	if st.Mode&unix.S_IFMT != unix.S_IFREG || bytes > int64(p.blocks)*s.o.Layout.BlockBytes || !p.root.sums.OfOthers(st.Mode) {
		return nil, 0, os.ErrNotExist
	}
	if hole, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_HOLE); err == nil {
		bytes = min(bytes, hole)
	}
	return f, bytes, nil
}

// openPacked opens the pack of a block, if the block is known to be in one.
func (s *Store) openPacked(key kv.Key) (*os.File, pack, error) {
	p, ok := s.packs.find(key)
	if !ok {
		return nil, p, kv.ErrMiss
	}
	f, bytes, err := s.openPack(p)
	switch {
	case gone(err):
		s.packs.forget(key)
		return nil, p, kv.ErrMiss
	case err != nil:
		return nil, p, err
	}
	if format, ok := s.o.Format.(Packed); !ok || !format.InPack(bytes, p.block, p.blocks) {
		f.Close()
		return nil, p, kv.ErrMiss
	}
	return f, p, nil
}

// hasPacked reports whether a block is in a pack that is known.
func (s *Store) hasPacked(key kv.Key) (bool, error) {
	f, p, err := s.openPacked(key)
	if err == kv.ErrMiss {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	st, err := status(int(f.Fd()), "")
	if err != nil {
		return false, &os.PathError{Op: "stat", Path: p.path, Err: err}
	}
	return !s.unreadable.has(key, st.Ino), nil
}

// openInPack is openIn for a block in a pack that is known.
func (s *Store) openInPack(key kv.Key) (*handle, error) {
	f, p, err := s.openPacked(key)
	if err != nil {
		return nil, err
	}
	h := &handle{key: key, root: p.root, path: p.path, opened: time.Now()}
	st, err := status(int(f.Fd()), "")
	if err == nil {
		h.file, err = s.engine.Open(f)
	}
	if err != nil {
		f.Close()
		s.unreadable.opened(key, st.Ino, err)
		return nil, err
	}
	h.ino, h.mode, h.version = st.Ino, st.Mode, versionOf(st, sums.Finding{})
	h.at = Place{Dir: ".", Name: filepath.Base(p.path), Offset: int64(p.block) * s.o.Layout.BlockBytes, Bytes: int64(st.Size)}
	return h, nil
}

// removePacked removes the pack that has a block, with all blocks in it, where names tell
// whose it is.
func (s *Store) removePacked(key kv.Key) error {
	there, err := s.hasPacked(key)
	if err != nil || !there {
		return err
	}
	p, _ := s.packs.find(key)
	if !s.o.NamesTell {
		return fmt.Errorf("kvstore: delete block %s: %s has other blocks as well and is another program's; delete it there", key, p.path)
	}
	s.packs.forget(key)
	if err := unix.Unlink(p.path); err != nil && !gone(err) {
		return &os.PathError{Op: "unlink", Path: p.path, Err: err}
	}
	return nil
}
