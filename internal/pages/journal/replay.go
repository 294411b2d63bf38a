package journal

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
)

// Replay calls each for every record, oldest first, and then starts to accept
// writes. rec is valid during the call only. An error of each is reported as damage
// of the file: records are written by one program and read by the same.
func (j *Journal) Replay(each func(rec []byte) error) error {
	if err := guard(j.path, func() error { return j.replay(each) }); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return ErrClosed
	}
	j.running = true
	go j.run()
	return nil
}

func (j *Journal) replay(each func(rec []byte) error) error {
	if err := j.makeBucket(); err != nil {
		return fmt.Errorf("%s: %w", j.path, err)
	}
	j.next = 1
	return j.db.View(func(tx *bolt.Tx) error {
		info, err := os.Stat(j.path)
		if err != nil {
			return err
		}
		if info.Size() < tx.Size() {
			return corrupt(j.path, fmt.Sprintf("%d bytes of %d are left", info.Size(), tx.Size()))
		}
		c := tx.Bucket([]byte(records)).Cursor()
		for key, value := c.First(); key != nil; key, value = c.Next() {
			if len(key) != 8 || len(value) < 4 {
				return corrupt(j.path, fmt.Sprintf("record %x is no record", key))
			}
			seq := binary.BigEndian.Uint64(key)
			if checksum(value[4:]) != binary.LittleEndian.Uint32(value) {
				return corrupt(j.path, fmt.Sprintf("checksum of record %d is wrong", seq))
			}
			if err := each(value[4:]); err != nil {
				return corrupt(j.path, fmt.Sprintf("record %d: %v", seq, err))
			}
			j.next = seq + 1
			j.sizeBytes += int64(len(value))
		}
		return nil
	})
}

// makeBucket makes the bucket of a new file. An old one is not written to: it can be
// read on a full disk.
func (j *Journal) makeBucket() error {
	made := false
	if err := j.db.View(func(tx *bolt.Tx) error {
		made = tx.Bucket([]byte(records)) != nil
		return nil
	}); err != nil || made {
		return err
	}
	return j.db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte(records))
		return err
	})
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
