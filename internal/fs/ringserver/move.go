//go:build !movesnothing

package ringserver

import (
	"syscall"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// read fills w, which is at offset off of its iov, from a file, and compares it with the file's checksums.
// EIO: it is not what was written.
func (s *Server) read(b *borrowed, w shm.Window, off, fileOff int64) (n int64, waited bool, err error) {
	f := b.file
	if !f.Sums().BeginRead(b.check, f.FD(), fileOff, w.Len()) {
		return s.mover.Read(f, w, off, fileOff)
	}
	defer b.check.End()
	var (
		arrived, checked int64 // of w
		damage           bool
	)
	// check compares the ranges that have arrived with the first n bytes.
	check := func(n int64) {
		if damage || n == arrived {
			return
		}
		arrived = n
		end := b.timeSums(s.clock)
		bad, found := b.check.Check(w.From(checked).First(n-checked), fileOff+checked)
		end()
		if found {
			f.Damaged(bad)
			damage = true
		}
		checked = max(checked, n-(fileOff+n)%integrity.RangeBytes)
	}
	n, waited, err = s.mover.ReadPieces(f, w, off, fileOff, blockio.Pieces{Bytes: integrity.RangeBytes, Moved: check})
	if err != nil {
		return n, waited, err
	}
	if check(n); damage {
		return 0, waited, syscall.EIO
	}
	return n, waited, nil
}
