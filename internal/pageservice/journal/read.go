package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// read checks the file and passes the whole log to the owner.
func (j *Journal) read(f *os.File) error {
	err := j.readAll(f)
	var d damage
	switch {
	case errors.Is(err, pageservice.ErrClosed):
		return pageservice.ErrClosed
	case errors.As(err, &d), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return corrupt(j.path, err)
	case err != nil:
		return fmt.Errorf("%s: %w", j.path, err)
	}
	return nil
}

func (j *Journal) readAll(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return damage("it is empty")
	}
	var missing string
	if j.meta, missing, err = readMetas(f); err != nil {
		return err
	}
	w, err := newWalker(f, j.meta, info.Size())
	if err != nil {
		return err
	}
	sequence, err := w.records(j.replay)
	if err != nil {
		return err
	}
	if !j.matches(sequence, j.meta.txid) {
		return damaged("the records, of which %d are left, are not those of transaction %d", j.count, j.meta.txid)
	}
	if err := w.freelist(); err != nil {
		return err
	}
	if missing != "" {
		j.owner.Missing(fmt.Sprintf("%s: %s", j.path, missing))
	}
	return nil
}

// replay passes a record to the owner.
func (j *Journal) replay(seq uint64, value []byte) error {
	switch {
	case j.queue.Closed():
		return pageservice.ErrClosed
	case seq != j.next && j.count > 0:
		return damaged("record %d follows %d", seq, j.next-1)
	case len(value) < checksumBytes:
		return damaged("record %d is malformed", seq)
	case checksum(value[checksumBytes:]) != binary.LittleEndian.Uint32(value):
		return damaged("checksum of record %d is wrong", seq)
	}
	if err := j.owner.Replay(value[checksumBytes:]); err != nil {
		return damaged("record %d: %v", seq, err)
	}
	j.add(seq, value)
	return nil
}

// guard turns a panic into an error: bbolt maps its file into memory and trusts what it
// reads there, so it panics or faults on one that is damaged or cut short while it is
// open.
func guard(path string, f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if p := recover(); p != nil {
			err = corrupt(path, p)
		}
	}()
	return f()
}

func corrupt(path string, cause any) error {
	return fmt.Errorf("%w: %s: %v; stop the engines and move it away, and %s with it, to start with an empty cache (a backup would name pages that have other bytes by now)",
		pageservice.ErrCorrupt, path, cause, filepath.Base(used(path)))
}
