package wire

import (
	"encoding/binary"
	"math"
)

// Sizes and offsets of ring memory (4.1, 4.2). All integers are little-endian.
const (
	ArgsBytes = 56 // one argument slot
	CqeBytes  = 24 // one completion entry
	SqeBytes  = 16 // one submission entry
	SemBytes  = 32 // a glibc sem_t

	// The four markers. The producer writes at head and the consumer reads at tail, the
	// reverse of io_uring.
	OffSqeHead = 0  // stored by the client
	OffSqeTail = 4  // stored by the daemon
	OffCqeHead = 8  // stored by the daemon
	OffCqeTail = 12 // stored by the client
	OffArgs    = 16

	perEntryBytes = ArgsBytes + CqeBytes + SqeBytes // 96
	ringTailBytes = 4096                            // slack at the end of the object, which upstream does not use
	fixedBytes    = OffArgs + SemBytes + ringTailBytes
)

// MostEntries is the number of usable entries that kv3fs serves in one ring. Engines use
// up to some thousands; upstream's limit is the integer's.
const MostEntries = 1 << 16

// RingBytes returns the exact object size of a ring with so many usable entries:
// 4240 + 96*entries. entries must not be negative.
func RingBytes(entries int) int64 {
	return fixedBytes + perEntryBytes*(int64(entries)+1)
}

// Usable returns the number of usable entries in a ring object of sizeBytes, below 1
// where the object is too small to be a ring. Upstream computes this unsigned, so that
// a tiny object seems enormous there.
func Usable(sizeBytes int64) int {
	if sizeBytes < fixedBytes {
		return -1
	}
	return int(min(math.MaxInt32, (sizeBytes-fixedBytes)/perEntryBytes)) - 1
}

// Layout gives the offsets of a ring's arrays. The ring length is one more than the
// usable entries: one slot stays empty to tell a full ring from an empty one.
type Layout struct {
	RingLen int32 // slots in each of the three arrays
}

// LayoutOf derives the layout from the object's size, as both sides do. ok is false
// where the object has no usable entry.
func LayoutOf(sizeBytes int64) (l Layout, ok bool) {
	n := Usable(sizeBytes)
	if n < 1 {
		return Layout{}, false
	}
	return Layout{RingLen: int32(n + 1)}, true
}

// Entries returns the number of usable entries.
func (l Layout) Entries() int { return int(l.RingLen) - 1 }

// ArgsOff returns the byte offset of argument slot i, which must be in [0, RingLen).
func (l Layout) ArgsOff(i int32) int64 { return OffArgs + ArgsBytes*int64(i) }

// CqeOff returns the byte offset of completion slot i.
func (l Layout) CqeOff(i int32) int64 {
	return OffArgs + ArgsBytes*int64(l.RingLen) + CqeBytes*int64(i)
}

// SqeOff returns the byte offset of submission slot i.
func (l Layout) SqeOff(i int32) int64 {
	return OffArgs + (ArgsBytes+CqeBytes)*int64(l.RingLen) + SqeBytes*int64(i)
}

// SemOff returns the byte offset of the completion semaphore.
func (l Layout) SemOff() int64 { return OffArgs + perEntryBytes*int64(l.RingLen) }

// AwaitedOff returns the byte offset of a 32-bit number that kv3fs adds, in the slack: how
// many completions the client's only sleeping waiter lacks. The daemon posts no sooner. With
// 0, which upstream's clients leave there, it posts for any.
func (l Layout) AwaitedOff() int64 { return l.SemOff() + SemBytes }

// The words that follow are kv3fs's, too, by which a client whose mount has ended learns whether
// its ring is served.

// PingOff returns the byte offset of a number that the client changes, and PongOff of where a daemon
// that serves the ring copies it within some 50 ms.
func (l Layout) PingOff() int64 { return l.AwaitedOff() + 4 }
func (l Layout) PongOff() int64 { return l.AwaitedOff() + 8 }

// GapOff returns the byte offset of how many seconds a client should wait for a successor of the
// daemon before it gives the ring up. 0: the ring ends with its daemon.
func (l Layout) GapOff() int64 { return l.AwaitedOff() + 12 }

// Next returns the marker after i.
func (l Layout) Next(i int32) int32 {
	if i++; i == l.RingLen {
		return 0
	}
	return i
}

// Count returns the number of filled slots between a consumer's tail and a producer's
// head; both must be Valid.
func (l Layout) Count(tail, head int32) int32 {
	if head >= tail {
		return head - tail
	}
	return head - tail + l.RingLen
}

// Valid reports whether a marker or index from the peer is in range.
func (l Layout) Valid(i int32) bool { return i >= 0 && i < l.RingLen }

// Args is one request as the client wrote it (4.2), unchecked.
type Args struct {
	BufID    UUID
	BufOff   uint64 // bytes from the start of the iov
	FileIno  uint64
	FileOff  uint64
	Len      uint64
	Userdata uint64
}

// Decode reads an argument slot.
func (a *Args) Decode(b *[ArgsBytes]byte) {
	copy(a.BufID[:], b[:16])
	a.BufOff = binary.LittleEndian.Uint64(b[16:])
	a.FileIno = binary.LittleEndian.Uint64(b[24:])
	a.FileOff = binary.LittleEndian.Uint64(b[32:])
	a.Len = binary.LittleEndian.Uint64(b[40:])
	a.Userdata = binary.LittleEndian.Uint64(b[48:])
}

// Encode writes an argument slot.
func (a *Args) Encode(b *[ArgsBytes]byte) {
	copy(b[:16], a.BufID[:])
	binary.LittleEndian.PutUint64(b[16:], a.BufOff)
	binary.LittleEndian.PutUint64(b[24:], a.FileIno)
	binary.LittleEndian.PutUint64(b[32:], a.FileOff)
	binary.LittleEndian.PutUint64(b[40:], a.Len)
	binary.LittleEndian.PutUint64(b[48:], a.Userdata)
}

// Sqe is a submission entry: the index of an argument slot, and a value that the
// completion returns.
type Sqe struct {
	Index    int32
	Userdata uint64
}

// Decode reads a submission entry.
func (s *Sqe) Decode(b *[SqeBytes]byte) {
	s.Index = int32(binary.LittleEndian.Uint32(b[0:]))
	s.Userdata = binary.LittleEndian.Uint64(b[8:])
}

// Encode writes a submission entry; the four bytes of padding become zero.
func (s *Sqe) Encode(b *[SqeBytes]byte) {
	binary.LittleEndian.PutUint64(b[0:], uint64(uint32(s.Index)))
	binary.LittleEndian.PutUint64(b[8:], s.Userdata)
}

// Cqe is a completion entry: Result is the bytes transferred or a negative errno.
type Cqe struct {
	Index    int32
	Result   int64
	Userdata uint64
}

// Decode reads a completion entry.
func (c *Cqe) Decode(b *[CqeBytes]byte) {
	c.Index = int32(binary.LittleEndian.Uint32(b[0:]))
	c.Result = int64(binary.LittleEndian.Uint64(b[8:]))
	c.Userdata = binary.LittleEndian.Uint64(b[16:])
}

// Encode writes a completion entry; the reserved word becomes zero.
func (c *Cqe) Encode(b *[CqeBytes]byte) {
	binary.LittleEndian.PutUint64(b[0:], uint64(uint32(c.Index)))
	binary.LittleEndian.PutUint64(b[8:], uint64(c.Result))
	binary.LittleEndian.PutUint64(b[16:], c.Userdata)
}
