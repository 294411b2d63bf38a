package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/queue"
)

// batchBytes bounds what one transaction writes, except for a larger write.
const batchBytes = 16 << 20

// run is the committer. It writes everything that is queued in one transaction, so that
// many writers share one wait for the disk and a single writer waits for no other.
func (j *Journal) run() {
	defer close(j.done)
	for {
		batch, closed := j.queue.Take(batchBytes)
		if len(batch) > 0 {
			err := j.commit(batch)
			for _, w := range batch {
				w.Finish(err)
			}
			continue
		}
		if closed {
			return
		}
		<-j.queue.Wake()
	}
}

// commit writes a batch and, before it, what compaction keeps.
func (j *Journal) commit(batch []*queue.Write) error {
	if j.broken != nil {
		return j.broken
	}
	before := j.tally
	err := j.transact(func(b *bolt.Bucket) error {
		if j.wasteful() && !j.paused {
			n := int64(0)
			for _, w := range batch {
				n += int64(w.Bytes)
			}
			if err := j.compact(b, n); err != nil {
				return err
			}
		}
		for _, w := range batch {
			for _, rec := range w.Recs {
				if err := j.put(b, rec); err != nil {
					return err
				}
			}
		}
		return nil
	})
	j.paused = err != nil
	j.report(err)
	if err == nil {
		return nil
	}
	written := j.next
	j.tally = before
	if errors.Is(err, pageservice.ErrCorrupt) {
		j.broken, j.stuck = err, true
		return err
	}
	// A commit that failed in its last step may still be on the disk, now or after a
	// restart. Then nothing more can be promised.
	if last, lerr := lastRecord(j.db); lerr != nil || last+1 == written && written != before.next {
		j.broken = fmt.Errorf("%s: the outcome of a failed write is unknown: %w; restart the service", j.path, err)
	}
	return err
}

// reportEvery is how often a disk that stays full is logged.
const reportEvery = 10 * time.Second

// report logs that writes fail, at once and then every reportEvery, and that they
// succeed again.
func (j *Journal) report(err error) {
	switch {
	case err != nil && (j.failed.IsZero() || time.Since(j.failed) >= reportEvery):
		j.failed = time.Now()
		j.o.Logger.Error("page log: writes fail", "file", j.path, "err", err)
	case err == nil && !j.failed.IsZero():
		j.failed = time.Time{}
		j.o.Logger.Info("page log: writes succeed again", "file", j.path)
	}
}

// transact runs fill in a bbolt transaction, whose commit writes to the disk.
func (j *Journal) transact(fill func(*bolt.Bucket) error) error {
	return guard(j.path, func() error {
		tx, err := j.db.Begin(true)
		if err != nil {
			return err
		}
		txid := uint64(tx.ID())
		b := tx.Bucket([]byte(bucket))
		b.FillPercent = 1 // records are only ever added at the right edge
		if err = fill(b); err == nil {
			err = b.SetSequence(j.seal(txid))
		}
		if err == nil {
			err = j.o.Commit(tx.Commit)
		}
		if err != nil {
			_ = tx.Rollback()
			return err
		}
		// Without the mark the file is as good, only less sure of itself.
		_ = writeMark(j.file, j.meta.pageBytes, txid)
		return nil
	})
}

// put appends a record with its checksum.
func (j *Journal) put(b *bolt.Bucket, rec []byte) error {
	value := make([]byte, checksumBytes+len(rec))
	binary.LittleEndian.PutUint32(value, checksum(rec))
	copy(value[checksumBytes:], rec)
	if err := b.Put(binary.BigEndian.AppendUint64(nil, j.next), value); err != nil {
		return err
	}
	j.add(j.next, value)
	return nil
}

// checksumBytes is how long the checksum is that precedes a record.
const checksumBytes = 4

func checksum(rec []byte) uint32 {
	return crc32.Checksum(rec, crc32.MakeTable(crc32.Castagnoli))
}

// lastRecord returns the sequence number of the newest record in the file.
func lastRecord(db *bolt.DB) (seq uint64, err error) {
	err = db.View(func(tx *bolt.Tx) error {
		if key, _ := tx.Bucket([]byte(bucket)).Cursor().Last(); key != nil {
			seq = binary.BigEndian.Uint64(key)
		}
		return nil
	})
	return seq, err
}
