package journal

import (
	"encoding/binary"

	bolt "go.etcd.io/bbolt"
)

// Compaction removes the oldest records and appends what the owner still needs of
// them. The owner knows the outcome of everything written so far, so what it still
// needs is true at that place of the log.

// wasteful reports whether less than half of the log is needed.
func (j *Journal) wasteful() bool {
	return j.sizeBytes > 2*j.owner.LiveBytes()+j.o.SlackBytes
}

// compact looks at some of the oldest records: four times as many bytes as are being
// written, so that the log shrinks even when half of it is still needed.
func (j *Journal) compact(b *bolt.Bucket, writing int64) error {
	budget := max(4*writing, j.o.SlackBytes/64)
	var old [][]byte
	var kept [][]byte
	c := b.Cursor()
	for key, value := c.First(); key != nil && budget > 0; key, value = c.Next() {
		budget -= int64(len(value))
		j.remove(binary.BigEndian.Uint64(key), value)
		old = append(old, append([]byte(nil), key...))
		kept = append(kept, j.owner.Keep(value[checksumBytes:])...)
	}
	for _, key := range old {
		if err := b.Delete(key); err != nil {
			return err
		}
	}
	for _, rec := range kept {
		if err := j.put(b, rec); err != nil {
			return err
		}
	}
	return nil
}
