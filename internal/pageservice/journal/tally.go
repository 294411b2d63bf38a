package journal

import "encoding/binary"

// tally describes the records of the log.
type tally struct {
	next      uint64 // sequence number of the next record
	count     uint64
	sum       uint64 // of the hashes of all sequence numbers and checksums
	sizeBytes int64
}

func (t *tally) add(seq uint64, value []byte) {
	t.next = seq + 1
	t.count++
	t.sum += recordHash(seq, value)
	t.sizeBytes += int64(len(value))
}

func (t *tally) remove(seq uint64, value []byte) {
	t.count--
	t.sum -= recordHash(seq, value)
	t.sizeBytes -= int64(len(value))
}

func recordHash(seq uint64, value []byte) uint64 {
	return hash64(append(binary.LittleEndian.AppendUint64(nil, seq), value[:checksumBytes]...))
}

// sealed marks a seal. Without it, the sequence of the bucket is the number of records:
// kv3fs 0.1.0 wrote that.
const sealed = 1 << 63

// seal returns what a transaction writes as the sequence of the bucket. It ties the
// records to each other and to the meta page, which has the transaction's number, so
// that no page can be an old copy of itself.
func (t *tally) seal(txid uint64) uint64 {
	b := binary.LittleEndian.AppendUint64(nil, txid)
	b = binary.LittleEndian.AppendUint64(b, t.count)
	b = binary.LittleEndian.AppendUint64(b, t.sum)
	return hash64(b) | sealed
}

// matches reports whether the sequence of the bucket is that of these records.
func (t *tally) matches(sequence, txid uint64) bool {
	if sequence&sealed == 0 {
		return sequence == t.count
	}
	return sequence == t.seal(txid)
}
