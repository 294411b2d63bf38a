package blockfiles

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// headError says that what a file begins with is not what the Format wants.
type headError struct{ wrong error }

func (e *headError) Error() string { return e.wrong.Error() }

// checkHead reads what is before the block in a file. It returns a headError if it is
// wrong, and other errors if it cannot be read.
func (s *Store) checkHead(key kv.Key, at Place, f *os.File) error {
	if at.Offset == 0 {
		return nil
	}
	head := make([]byte, at.Offset)
	switch n, err := f.ReadAt(head, 0); {
	case err == io.EOF:
		return &headError{fmt.Errorf("it ends after %d bytes", n)}
	case err != nil:
		return err
	}
	if err := s.o.Format.CheckHead(key, head); err != nil {
		return &headError{err}
	}
	return nil
}

// writeHead writes what is before the block into a new file.
func (s *Store) writeHead(f transfer.File, key kv.Key, at Place) error {
	if at.Offset == 0 {
		return nil
	}
	head := s.o.Format.Head(key)
	if len(head) == 0 {
		return nil
	}
	written := make(chan error, 1)
	s.engine.Do(context.Background(), []transfer.Op{{
		File: f, Buf: head, Write: true, Ahead: true,
		Done: func(n int, err error) {
			if err == nil && n < len(head) {
				err = io.ErrShortWrite
			}
			written <- err
		},
	}})
	return <-written
}

// side returns where the side file of a block is, "" where there is none.
func (r *root) side(at Place) string {
	if at.Side == "" {
		return ""
	}
	return filepath.Join(r.dir, at.Dir, at.Side)
}

// lacksSide reports whether a block is to have a side file and does not.
func (r *root) lacksSide(at Place) bool {
	side := r.side(at)
	if side == "" {
		return false
	}
	info, err := os.Lstat(side)
	return gone(err) || err == nil && !info.Mode().IsRegular()
}

// checkSide is checkHead for the side file of a block.
func (s *Store) checkSide(r *root, key kv.Key, at Place) error {
	side := r.side(at)
	if side == "" {
		return nil
	}
	f, err := s.openFile(side)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.checkHead(key, at, f)
}

// nameSide writes the side file of a block that has its name.
func (s *Store) nameSide(r *root, key kv.Key, at Place) error {
	side := r.side(at)
	if side == "" {
		return nil
	}
	path := s.temporaryPath(r, key)
	err := os.WriteFile(path, s.o.Format.Head(key), 0o644)
	if err == nil {
		err = os.Rename(path, side)
	}
	if err != nil {
		_ = os.Remove(path)
	}
	return err
}
