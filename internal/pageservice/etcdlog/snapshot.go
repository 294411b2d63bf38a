package etcdlog

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// A snapshot is a file: a preamble, which cluster's log it belongs to, at which index and chain, the hash of the state,
// the records that give that state, and a SHA-256 of everything before it. Each record is preceded by its length
// plus one, so that a zero ends them.

const (
	snapshotMagic  = "kv3s"
	snapshotFormat = 1

	// snapshotHeaderBytes bounds what precedes the records.
	snapshotHeaderBytes = 4 << 10
)

// snapshotHeader precedes the records.
type snapshotHeader struct {
	by      writer
	cluster string
	index   uint64
	chain   chain
	state   uint64
}

func (h *snapshotHeader) encode() []byte {
	b := appendPreamble(nil, snapshotMagic, snapshotFormat, h.by)
	b = append(append(b, byte(len(h.cluster))), h.cluster...)
	b = binary.LittleEndian.AppendUint64(b, h.index)
	b = append(b, h.chain[:]...)
	return binary.LittleEndian.AppendUint64(b, h.state)
}

// decode reads a header from the beginning of b, and returns its length.
func (h *snapshotHeader) decode(b []byte) (n int, err error) {
	d := decoder{b: b}
	if h.by, err = d.preamble("a snapshot of the page log", snapshotMagic, snapshotFormat); err != nil {
		return 0, err
	}
	h.cluster = string(d.take(int(d.byte())))
	h.index = d.uint64()
	h.chain = d.chain()
	h.state = d.uint64()
	if d.bad {
		return 0, errMalformed
	}
	return len(b) - len(d.b), nil
}

// encodeSnapshot writes a snapshot, and returns its length and hash. records passes them to emit.
func encodeSnapshot(w io.Writer, h *snapshotHeader, records func(emit func(rec []byte) error) error) (bytes int64, sum chain, err error) {
	sha := sha256.New()
	out := bufio.NewWriterSize(w, 1<<20)
	put := func(b []byte) error {
		_, _ = sha.Write(b)
		bytes += int64(len(b))
		_, err := out.Write(b)
		return err
	}
	if err := put(h.encode()); err != nil {
		return 0, sum, err
	}
	err = records(func(rec []byte) error {
		if len(rec) > pageservice.SnapshotRecordBytes {
			return fmt.Errorf("a record of %d bytes; want at most %d", len(rec), pageservice.SnapshotRecordBytes)
		}
		if err := put(binary.AppendUvarint(nil, uint64(len(rec))+1)); err != nil {
			return err
		}
		return put(rec)
	})
	if err == nil {
		err = put([]byte{0})
	}
	if err != nil {
		return 0, sum, err
	}
	sum = chain(sha.Sum(nil))
	if err := put(sum[:]); err != nil {
		return 0, sum, err
	}
	return bytes, sum, out.Flush()
}

// decodeSnapshot reads a snapshot. The records that it passes on are valid during the call only, and can only be
// believed when it has returned nil. sum is the hash that the file has and, then, ends with.
func decodeSnapshot(r io.Reader, each func(rec []byte) error) (h snapshotHeader, sum chain, err error) {
	d := snapshotReader{in: bufio.NewReaderSize(r, 1<<20), sha: sha256.New()}
	begin, err := d.in.Peek(snapshotHeaderBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return h, sum, err
	}
	n, err := h.decode(begin)
	if err != nil {
		return h, sum, err
	}
	if _, err = d.take(n); err != nil {
		return h, sum, err
	}
	for {
		n, err := d.uvarint()
		if err != nil {
			return h, sum, err
		}
		if n == 0 {
			break
		}
		rec, err := d.take(int(n - 1))
		if err != nil {
			return h, sum, err
		}
		if err := each(rec); err != nil {
			return h, sum, err
		}
	}
	sum = chain(d.sha.Sum(nil))
	end, err := d.take(len(sum))
	if err != nil {
		return h, sum, err
	}
	if sum != chain(end) {
		return h, sum, errors.New("its checksum is wrong")
	}
	if _, err := d.in.ReadByte(); !errors.Is(err, io.EOF) {
		return h, sum, errors.New("it is longer than it should be")
	}
	return h, sum, nil
}

// snapshotReader reads and hashes.
type snapshotReader struct {
	in   *bufio.Reader
	sha  hash.Hash
	rec  []byte // reused
	byte [1]byte
}

// take returns the next n bytes, valid until the next call.
func (d *snapshotReader) take(n int) ([]byte, error) {
	if cap(d.rec) < n {
		d.rec = make([]byte, max(n, 64<<10))
	}
	b := d.rec[:n]
	if _, err := io.ReadFull(d.in, b); err != nil {
		return nil, truncated(err)
	}
	_, _ = d.sha.Write(b)
	return b, nil
}

// uvarint reads the length of a record, plus one.
func (d *snapshotReader) uvarint() (uint64, error) {
	n, err := binary.ReadUvarint(d)
	switch {
	case err != nil:
		return 0, truncated(err)
	case n > pageservice.SnapshotRecordBytes+1:
		return 0, fmt.Errorf("a record of %d bytes", n-1)
	}
	return n, nil
}

// ReadByte implements io.ByteReader.
func (d *snapshotReader) ReadByte() (byte, error) {
	b, err := d.in.ReadByte()
	if err == nil {
		d.byte[0] = b
		_, _ = d.sha.Write(d.byte[:])
	}
	return b, err
}

func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it is shorter than it should be")
	}
	return err
}
