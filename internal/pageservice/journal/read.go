package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// read passes the whole log to the owner.
func (j *Journal) read() error {
	info, err := os.Stat(j.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	db, err := openDB(j.path, j.o, true)
	if err != nil {
		return err
	}
	err = guard(j.path, func() error {
		return db.View(func(tx *bolt.Tx) error { return j.readAll(tx, info.Size()) })
	})
	return errors.Join(err, db.Close())
}

// leafBytes is less than what any leaf of the tree holds, except the last.
const leafBytes = 1 << 10

func (j *Journal) readAll(tx *bolt.Tx, sizeBytes int64) error {
	if sizeBytes < tx.Size() {
		return corrupt(j.path, fmt.Sprintf("%d bytes of %d are left", sizeBytes, tx.Size()))
	}
	b := tx.Bucket([]byte(bucket))
	if b == nil {
		return nil // the process ended while it was making the file
	}
	c, seeker, unsought := b.Cursor(), b.Cursor(), 0
	for key, value := c.First(); key != nil; key, value = c.Next() {
		if len(key) != 8 || len(value) < 4 {
			return corrupt(j.path, fmt.Sprintf("record %x is malformed", key))
		}
		seq := binary.BigEndian.Uint64(key)
		if seq != j.next && j.count > 0 {
			return corrupt(j.path, fmt.Sprintf("record %d follows %d", seq, j.next-1))
		}
		if checksum(value[4:]) != binary.LittleEndian.Uint32(value) {
			return corrupt(j.path, fmt.Sprintf("checksum of record %d is wrong", seq))
		}
		// Going from one record to the next does not look at the branches that lead to
		// the leaf; writing does.
		if unsought += len(value); unsought >= leafBytes {
			unsought = 0
			if found, _ := seeker.Seek(key); string(found) != string(key) {
				return corrupt(j.path, fmt.Sprintf("record %d is not found", seq))
			}
		}
		if err := j.owner.Replay(value[4:]); err != nil {
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

// guard turns a panic into an error: bbolt maps its file into memory and trusts what it
// reads there, so it panics or faults on a damaged or shortened file.
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
	return fmt.Errorf("%w: %s: %v; restore the file from a backup, or move it away to start with an empty cache", pageservice.ErrCorrupt, path, cause)
}
