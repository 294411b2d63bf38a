package restart

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
)

// ErrDamaged says that a file is not what was written: cut short, changed, or of another program.
var ErrDamaged = errors.New("damaged")

// A frame is what is written at once: its payload's length and version, the payload, and a
// checksum of all before it.
const (
	frameHead = 8
	frameSum  = 8
	// MostBytes bounds a payload.
	MostBytes = 16 << 20
)

// appendFrame appends a frame to b. The payload has at most MostBytes.
func appendFrame(b []byte, version uint32, payload []byte) []byte {
	begin := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, version)
	b = append(b, payload...)
	return binary.LittleEndian.AppendUint64(b, xxh3.Hash(b[begin:]))
}

// cutFrame returns the payload of the frame that b begins with, which shares b's memory, and
// what follows the frame. ErrDamaged: b begins with no whole frame.
func cutFrame(b []byte) (version uint32, payload, rest []byte, err error) {
	if len(b) < frameHead+frameSum {
		return 0, nil, nil, fmt.Errorf("%w: %d bytes are no record", ErrDamaged, len(b))
	}
	n := binary.LittleEndian.Uint32(b)
	if n > MostBytes || int(n) > len(b)-frameHead-frameSum {
		return 0, nil, nil, fmt.Errorf("%w: a record of %d bytes has only %d", ErrDamaged, n, len(b)-frameHead-frameSum)
	}
	end := frameHead + int(n)
	if binary.LittleEndian.Uint64(b[end:]) != xxh3.Hash(b[:end]) {
		return 0, nil, nil, fmt.Errorf("%w: the checksum of a record does not match", ErrDamaged)
	}
	return binary.LittleEndian.Uint32(b[4:]), b[frameHead:end:end], b[end+frameSum:], nil
}
