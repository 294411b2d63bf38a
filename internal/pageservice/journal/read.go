package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
)

// read reads the whole log, if there is one.
func (j *Journal) read(each func(rec []byte) error) error {
	info, err := os.Stat(j.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return guard(j.path, func() error {
		db, err := openDB(j.path, j.o, true)
		if err != nil {
			return err
		}
		err = db.View(func(tx *bolt.Tx) error { return j.readAll(tx, info.Size(), each) })
		return errors.Join(err, db.Close())
	})
}

// leafBytes is less than any leaf of the tree holds, except the last.
const leafBytes = 1 << 10

func (j *Journal) readAll(tx *bolt.Tx, sizeBytes int64, each func(rec []byte) error) error {
	if sizeBytes < tx.Size() {
		return corrupt(j.path, fmt.Sprintf("%d bytes of %d are left", sizeBytes, tx.Size()))
	}
	b := tx.Bucket([]byte(records))
	if b == nil {
		return nil // the process ended while it made the file
	}
	c, seeker, unsought := b.Cursor(), b.Cursor(), 0
	for key, value := c.First(); key != nil; key, value = c.Next() {
		if len(key) != 8 || len(value) < 4 {
			return corrupt(j.path, fmt.Sprintf("record %x is no record", key))
		}
		seq := binary.BigEndian.Uint64(key)
		if seq != j.next && j.count > 0 {
			return corrupt(j.path, fmt.Sprintf("record %d follows %d", seq, j.next-1))
		}
		if checksum(value[4:]) != binary.LittleEndian.Uint32(value) {
			return corrupt(j.path, fmt.Sprintf("checksum of record %d is wrong", seq))
		}
		// Going from one record to the next does not look at what leads to the leaf;
		// opening the file to write does.
		if unsought += len(value); unsought >= leafBytes {
			unsought = 0
			if found, _ := seeker.Seek(key); string(found) != string(key) {
				return corrupt(j.path, fmt.Sprintf("record %d is not found", seq))
			}
		}
		if err := each(value[4:]); err != nil {
			return corrupt(j.path, fmt.Sprintf("record %d: %v", seq, err))
		}
		j.next = seq + 1
		j.count++
		j.sizeBytes += int64(len(value))
	}
	if j.count != b.Sequence() {
		return corrupt(j.path, fmt.Sprintf("%d records of %d are left", j.count, b.Sequence()))
	}
	return nil
}

// guard turns a panic into an error: bbolt believes the pages of its file, which it
// maps into memory, and a damaged or shortened one leads it astray.
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
	return fmt.Errorf("%w: %s: %v; restore the file from a backup, or move it away to start with an empty cache", ErrCorrupt, path, cause)
}
