//go:build !movesnothing

package ringserver

import "github.com/kv3fs/kv3fs/internal/shm"

// read fills w, which is at offset off of its iov, from a file.
func (s *Server) read(f File, w shm.Window, off, fileOff int64) (n int64, waited bool, err error) {
	return s.mover.Read(f, w, off, fileOff)
}
