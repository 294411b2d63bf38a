//go:build !movesnothing

package ringserver

import (
	"syscall"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// cachedBytes is how much is copied from memory before its sums are taken, which it then need not be
// fetched for once more.
const cachedBytes = 2 * integrity.RangeBytes

// read fills w, which is at offset off of its iov, from a file, and compares it with the file's checksums.
// EIO: it is not what was written.
func (s *Server) read(b *borrowed, w shm.Window, off, fileOff int64) (n int64, waited bool, err error) {
	f := b.file
	if !f.Sums().BeginRead(b.check, f.FD(), fileOff, w.Len()) {
		return s.mover.Read(f, w, off, fileOff)
	}
	defer b.check.End()
	inMemory := s.mover.Kind == blockio.Memory && f.OnDataDevice()
	for n < w.Len() {
		size := w.Len() - n
		if inMemory {
			size = min(size, cachedBytes-(fileOff+n)%integrity.RangeBytes)
		}
		part := w.From(n).First(size)
		got, mayWait, err := s.mover.Read(f, part, off+n, fileOff+n)
		waited = waited || mayWait
		if err != nil {
			return n + got, waited, err
		}
		if bad, found := b.check.Check(part.First(got), fileOff+n); found {
			f.Damaged(bad)
			return n, waited, syscall.EIO
		}
		if n += got; got < size {
			break
		}
	}
	return n, waited, nil
}
