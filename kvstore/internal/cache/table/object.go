package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// The object begins with a page that says what is in it. All numbers are words in
// the order of the machine that they never leave.
const (
	magicAt     = 0 // stored last
	blockAt     = 8
	shardAt     = 16
	slotsAt     = 24
	namespaceAt = 32 // 16 bytes
	changingAt  = 48 // not 0 while a process changes the table
	membersAt   = 56 // a bit for each

	magic = 0x33_65_68_63_61_63_76_6b // "kvcache3": changes with everything in this package that other processes see
)

func (t *Table) writeHeader() {
	t.m.StoreUint64(blockAt, uint64(t.c.Layout.BlockBytes))
	t.m.StoreUint64(shardAt, uint64(t.c.Layout.ShardBytes))
	t.m.StoreUint64(slotsAt, uint64(t.p.slots))
	t.m.StoreUint64(namespaceAt, binary.LittleEndian.Uint64(t.c.Namespace[:8]))
	t.m.StoreUint64(namespaceAt+8, binary.LittleEndian.Uint64(t.c.Namespace[8:]))
	t.m.StoreUint64(magicAt, magic)
}

// Open makes a table in an object below /dev/shm or, with shared, joins the processes that
// use it. All of the memory is taken now.
func Open(name string, c Config, shared bool) (*Table, error) {
	for {
		t := &Table{c: c, name: name, shared: shared}
		err := t.open()
		if err == nil {
			return t, nil
		}
		t.close()
		if !errors.Is(err, errGone) {
			return nil, fmt.Errorf("%s: %w", filepath.Join(shm.Dir, name), err)
		}
	}
}

// errGone means that the last user of the object removed it while it was being opened.
var errGone = errors.New("the object was removed")

func (t *Table) open() (err error) {
	t.fd, err = unix.Open(filepath.Join(shm.Dir, t.name), unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err == unix.EACCES {
		return errors.New("another user's: processes that share a cache run as the same user, or choose another shared name")
	}
	if err != nil {
		return err
	}
	if err := lockWithin(t.fd, t.c.LockWait); err != nil {
		return err
	}
	defer unlock(t.fd, tableLock)
	var st unix.Stat_t
	switch err := unix.Fstat(t.fd, &st); {
	case err != nil:
		return err
	case st.Nlink == 0:
		return errGone
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("is not a shared memory object")
	}
	fresh := st.Size == 0
	if !fresh {
		if fresh, err = t.inherit(st.Size); err != nil {
			return err
		}
	}
	if fresh {
		if err := t.make(); err != nil {
			unix.Unlink(filepath.Join(shm.Dir, t.name))
			return err
		}
	}
	if !t.shared {
		_, err := tryLock(t.fd, memberLock) // for Sweep
		return err
	}
	return t.join()
}

// make gives the object its size, its memory and its header.
func (t *Table) make() error {
	t.p = placeFor(t.c.Layout, t.c.Slots())
	free, err := shm.FreeBytes()
	if err == nil && free < t.p.total {
		return noSpace(t.p.total, free)
	}
	if err := unix.Ftruncate(t.fd, 0); err != nil {
		return err
	}
	if err := unix.Ftruncate(t.fd, t.p.total); err != nil {
		return err
	}
	if t.m, err = shm.Map(t.fd, t.p.total); err != nil {
		return err
	}
	if err := t.m.Reserve(); err != nil {
		if free, e := shm.FreeBytes(); err == unix.ENOSPC && e == nil {
			return noSpace(t.p.total, free)
		}
		return fmt.Errorf("%d bytes: %w", t.p.total, err)
	}
	t.m.WantHugePages()
	t.writeHeader()
	return nil
}

func noSpace(sizeBytes, freeBytes int64) error {
	return fmt.Errorf("the cache takes %d bytes and %s has %d left; make it larger (in a container, its shm size) or the cache smaller: %w",
		sizeBytes, shm.Dir, freeBytes, unix.ENOSPC)
}

// inherit maps an object that exists. It is fresh if its creator died before it was
// complete.
func (t *Table) inherit(sizeBytes int64) (fresh bool, err error) {
	var head [pageBytes]byte
	if n, err := unix.Pread(t.fd, head[:], 0); err != nil || n < len(head) {
		return false, fmt.Errorf("has %d bytes: it is no cache's; choose another shared name, or remove it when nobody uses it", sizeBytes)
	}
	word := func(at int) int64 { return int64(binary.NativeEndian.Uint64(head[at:])) }
	if word(magicAt) == 0 {
		return true, nil
	}
	if word(magicAt) != magic {
		return false, errors.New("is no cache's, or another version's; choose another shared name, or remove it when nobody uses it")
	}
	l := kv.Layout{BlockBytes: word(blockAt), ShardBytes: word(shardAt)}
	var ns kv.Fingerprint
	binary.LittleEndian.PutUint64(ns[:8], uint64(word(namespaceAt)))
	binary.LittleEndian.PutUint64(ns[8:], uint64(word(namespaceAt+8)))
	switch {
	case l != t.c.Layout:
		return false, fmt.Errorf("holds blocks of %d bytes in shards of %d, not of %d in %d; choose another shared name, or remove it when nobody uses it",
			l.BlockBytes, l.ShardBytes, t.c.Layout.BlockBytes, t.c.Layout.ShardBytes)
	case ns != t.c.Namespace:
		return false, fmt.Errorf("holds blocks of namespace %s, not %s; choose another shared name, or remove it when nobody uses it", ns, t.c.Namespace)
	}
	slots := word(slotsAt)
	if slots <= 0 || slots > sizeBytes/pageBytes || placeFor(l, slots).total != sizeBytes {
		return false, fmt.Errorf("has %d bytes, which are not those of %d blocks; remove it when nobody uses it", sizeBytes, slots)
	}
	t.p = placeFor(l, slots)
	if t.m, err = shm.Map(t.fd, t.p.total); err != nil {
		return false, err
	}
	t.m.WantHugePages()
	return false, nil
}

// close undoes a failed open.
func (t *Table) close() {
	if t.m != nil {
		t.m.Unmap()
	}
	if t.fd >= 0 {
		unix.Close(t.fd)
	}
}
