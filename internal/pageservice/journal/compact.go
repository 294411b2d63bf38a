package journal

import bolt "go.etcd.io/bbolt"

// Compaction takes the oldest records away and writes what is still needed of them
// at the young end. Since the owner has been told of everything written so far, what
// it still needs is true at that place of the log.

// wasteful tells whether less than half of the log is needed.
func (j *Journal) wasteful() bool {
	return j.o.Live != nil && j.sizeBytes > 2*j.o.Live()+j.o.SlackBytes
}

// compact looks at some of the oldest records: four times as much as is written, so
// that the log shrinks even when half of them are still needed.
func (j *Journal) compact(b *bolt.Bucket, writing int64) error {
	budget := max(4*writing, j.o.SlackBytes/64)
	var gone [][]byte
	var kept [][]byte
	c := b.Cursor()
	for key, value := c.First(); key != nil && budget > 0; key, value = c.Next() {
		budget -= int64(len(value))
		j.sizeBytes -= int64(len(value))
		gone = append(gone, append([]byte(nil), key...))
		kept = append(kept, j.o.Keep(value[4:])...)
	}
	for _, key := range gone {
		if err := b.Delete(key); err != nil {
			return err
		}
		j.count--
	}
	for _, rec := range kept {
		if err := j.put(b, rec); err != nil {
			return err
		}
	}
	return nil
}
