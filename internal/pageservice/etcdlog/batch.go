package etcdlog

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// kind says what a batch is for.
type kind byte

const (
	records    kind = iota + 1 // records of the owner
	leads                      // a host begins to lead, and has applied every earlier batch
	anew                       // the same, but what earlier batches said counts for nothing
	checkpoint                 // a host, which it names, is to take a snapshot here; all hash their states
)

// batch is one value of the log. Its index is that of its key; indices are dense.
type batch struct {
	by    writer
	kind  kind
	term  int64 // create revision of the leader's election key
	index uint64
	prev  chain // of the batch before

	// Writes that become durable together may be longer than a batch. Then they go on in the
	// next one; part counts, and last marks the end.
	part uint32
	last bool

	body []byte // records: framed; checkpoint: the host
}

const (
	batchMagic  = "kv3l"
	batchFormat = 1

	// batchBytes bounds the body of a batch.
	batchBytes = 256 << 10
)

// encode returns the value, and its chain.
func (b *batch) encode() ([]byte, chain) {
	v := make([]byte, 0, len(batchMagic)+len(b.by.Host)+len(b.by.Version)+2*len(chain{})+len(b.body)+32)
	v = appendPreamble(v, batchMagic, batchFormat, b.by)
	v = append(v, byte(b.kind))
	v = binary.LittleEndian.AppendUint64(v, uint64(b.term))
	v = binary.LittleEndian.AppendUint64(v, b.index)
	v = append(v, b.prev[:]...)
	last := byte(0)
	if b.last {
		last = 1
	}
	v = binary.LittleEndian.AppendUint32(v, b.part)
	v = append(v, last)
	v = append(v, b.body...)
	sum := chain(sha256.Sum256(v))
	return append(v, sum[:]...), sum
}

// decodeBatch reads a value that encode wrote. The body is part of the value.
func decodeBatch(value []byte) (b batch, sum chain, err error) {
	d := decoder{b: value}
	if b.by, err = d.preamble("a batch of the page log", batchMagic, batchFormat); err != nil {
		return b, sum, err
	}
	b.kind = kind(d.byte())
	b.term = int64(d.uint64())
	b.index = d.uint64()
	b.prev = d.chain()
	b.part = d.uint32()
	last := d.byte()
	b.last = last == 1
	b.body = d.take(len(d.b) - len(sum))
	sum = d.chain()
	switch {
	case d.bad, last > 1, b.kind < records, b.kind > checkpoint, len(b.body) > batchBytes, b.kind != records && (b.part > 0 || !b.last):
		return b, sum, errMalformed
	case sum != sha256.Sum256(value[:len(value)-len(sum)]):
		return b, sum, fmt.Errorf("its checksum is wrong")
	}
	return b, sum, nil
}
