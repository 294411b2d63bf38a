package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	bolt "go.etcd.io/bbolt"
)

// batchBytes bounds what one transaction writes, beyond its first write.
const batchBytes = 16 << 20

// run is the committer: it writes whatever has been queued in one transaction, so
// that many writers share the waits for the disk and a lone one does not wait.
func (j *Journal) run() {
	defer close(j.done)
	for {
		batch, closed := j.take()
		if len(batch) > 0 {
			err := j.commit(batch)
			for _, w := range batch {
				w.finish(err)
			}
			continue
		}
		if closed {
			return
		}
		<-j.wake
	}
}

// take takes the next writes from the queue, and tells whether no more will come.
func (j *Journal) take() (batch []*Write, closed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n, size := 0, 0
	for ; n < len(j.queue) && size < batchBytes; n++ {
		w := j.queue[n]
		if !w.state.CompareAndSwap(queued, taken) {
			continue
		}
		for _, rec := range w.recs {
			size += len(rec)
		}
		batch = append(batch, w)
	}
	j.queue = append(j.queue[:0:0], j.queue[n:]...)
	return batch, j.closed && len(j.queue) == 0
}

// commit writes a batch and, ahead of it, what compaction keeps.
func (j *Journal) commit(batch []*Write) error {
	if j.broken != nil {
		return j.broken
	}
	next, count, size := j.next, j.count, j.sizeBytes
	err := j.transact(func(b *bolt.Bucket) error {
		if j.wasteful() && !j.rested {
			n := int64(0)
			for _, w := range batch {
				for _, rec := range w.recs {
					n += int64(len(rec))
				}
			}
			if err := j.compact(b, n); err != nil {
				return err
			}
		}
		for _, w := range batch {
			for _, rec := range w.recs {
				if err := j.put(b, rec); err != nil {
					return err
				}
			}
		}
		return nil
	})
	j.rested = err != nil
	j.report(err)
	if err == nil {
		return nil
	}
	written := j.next
	j.next, j.count, j.sizeBytes = next, count, size
	if errors.Is(err, ErrCorrupt) {
		j.broken, j.stuck = err, true
		return err
	}
	// A commit that failed in its last step may be there all the same, now or after
	// a restart. Then nothing more can be promised.
	if last, lerr := j.last(); lerr != nil || last+1 == written && written != next {
		j.broken = fmt.Errorf("%s: the outcome of a failed write is unknown, restart the service: %w", j.path, err)
	}
	return err
}

// reportEvery is how often a disk that stays full is complained of.
const reportEvery = 10 * time.Second

// report logs that writes fail, at once and then now and then, and that they succeed
// again.
func (j *Journal) report(err error) {
	switch {
	case err != nil && (j.failed.IsZero() || time.Since(j.failed) >= reportEvery):
		j.failed = time.Now()
		j.o.Logger.Error("page log: writes fail", "file", j.path, "error", err)
	case err == nil && !j.failed.IsZero():
		j.failed = time.Time{}
		j.o.Logger.Info("page log: writes succeed again", "file", j.path)
	}
}

func (j *Journal) transact(fill func(*bolt.Bucket) error) error {
	return guard(j.path, func() error {
		tx, err := j.db.Begin(true)
		if err != nil {
			return err
		}
		b := tx.Bucket([]byte(records))
		b.FillPercent = 1 // records only ever come at the right edge
		if err = fill(b); err == nil {
			err = b.SetSequence(j.count)
		}
		if err == nil {
			err = j.o.Commit(tx.Commit)
		}
		if err != nil {
			_ = tx.Rollback()
		}
		return err
	})
}

// put appends a record with its checksum.
func (j *Journal) put(b *bolt.Bucket, rec []byte) error {
	value := make([]byte, 4+len(rec))
	binary.LittleEndian.PutUint32(value, checksum(rec))
	copy(value[4:], rec)
	if err := b.Put(binary.BigEndian.AppendUint64(nil, j.next), value); err != nil {
		return err
	}
	j.next++
	j.count++
	j.sizeBytes += int64(len(value))
	return nil
}

func checksum(rec []byte) uint32 {
	return crc32.Checksum(rec, crc32.MakeTable(crc32.Castagnoli))
}

// last is the sequence number of the youngest record in the file.
func (j *Journal) last() (seq uint64, err error) {
	err = j.db.View(func(tx *bolt.Tx) error {
		if key, _ := tx.Bucket([]byte(records)).Cursor().Last(); key != nil {
			seq = binary.BigEndian.Uint64(key)
		}
		return nil
	})
	return seq, err
}
