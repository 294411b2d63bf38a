package ringserver

import (
	"errors"
	"os"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// mapped is a mapping of a client's object. It counts as its user's mapped bytes until it
// is unmapped, whatever the client does with the object: address space is bounded, and so
// are the page tables that touched windows of a sparse object need.
type mapped struct {
	*shm.Mapping
	bytes *quota.Quota
	uid   uint32
}

// mapObject maps sizeBytes of the object behind fd for a user.
//
// ENOMEM: the user, or all of them, would have too much mapped. EMFILE: the daemon has no
// descriptor left. EACCES: the kernel refuses.
func mapObject(fd int, sizeBytes int64, bytes *quota.Quota, uid uint32) (mapped, error) {
	return charge(sizeBytes, bytes, uid, func() (*shm.Mapping, error) { return shm.Map(fd, sizeBytes) })
}

// Remap maps the same object again, at another address and at its own charge.
func (m mapped) Remap() (mapped, error) { return charge(m.Len(), m.bytes, m.uid, m.Mapping.Remap) }

func charge(sizeBytes int64, bytes *quota.Quota, uid uint32, mapIt func() (*shm.Mapping, error)) (mapped, error) {
	n := wholePages(sizeBytes)
	if n < 0 || !bytes.Take(uid, n) {
		return mapped{}, syscall.ENOMEM
	}
	m, err := mapIt()
	if err == nil {
		return mapped{m, bytes, uid}, nil
	}
	bytes.Return(uid, n)
	for _, known := range []syscall.Errno{syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, known) {
			return mapped{}, known
		}
	}
	return mapped{}, syscall.EACCES
}

// Unmap ends the mapping and its charge.
func (m mapped) Unmap() {
	n := wholePages(m.Len())
	m.Mapping.Unmap()
	m.bytes.Return(m.uid, n)
}

// wholePages returns what a mapping takes, or a negative number if nothing has that size.
func wholePages(sizeBytes int64) int64 {
	page := int64(os.Getpagesize())
	return (sizeBytes + page - 1) &^ (page - 1)
}
