package wire

import (
	"bytes"
	"encoding/binary"
	"syscall"
)

// Magic identifies a 3FS file descriptor; only IoctlGetMagic returns it (1.3).
const Magic = 0x8f3f5fff

// InterfaceVersion is the reply to IoctlGetVersion.
const InterfaceVersion = 1

// The ioctls of 1.5. IoctlFsync and IoctlRecursiveRm are declared as four-byte reads
// but called without a third argument, so their replies must have no bytes.
const (
	IoctlGetMountName  = 0x80206800
	IoctlGetPathOffset = 0x80046801
	IoctlGetMagic      = 0x80046802
	IoctlGetVersion    = 0x80046803
	IoctlRecursiveRm   = 0x8004680a
	IoctlFsync         = 0x8004680b
	IoctlHardlink      = 0x4108680c
	IoctlPunchHole     = 0x7e90680d
	IoctlMove          = 0x4218680e
	IoctlRemove        = 0x4110680f
	IoctlGetFlags      = 0x80086601
	IoctlSetFlags      = 0x40086602
	IoctlFsGetXattr    = 0x801c581f
)

// Sizes of the ioctl arguments, and the largest number of ranges in one of them.
const (
	MountNameBytes = 32
	HardlinkBytes  = 264
	PunchHoleBytes = 16016
	MoveBytes      = 536
	RemoveBytes    = 272
	MaxPunchRanges = 1000
)

// Hardlink requests another name for the ioctl's file, in any directory.
type Hardlink struct {
	NewParentIno uint64
	Name         string
}

// DecodeHardlink decodes the argument. EINVAL: wrong size or name.
func DecodeHardlink(b []byte) (Hardlink, error) {
	if len(b) != HardlinkBytes {
		return Hardlink{}, syscall.EINVAL
	}
	name, err := entryName(b[8:263])
	return Hardlink{NewParentIno: binary.LittleEndian.Uint64(b), Name: name}, err
}

// Range is a half-open byte range.
type Range struct{ Start, End uint64 }

// DecodePunchHole decodes up to MaxPunchRanges ranges. EINVAL: wrong size, a count out
// of range, or a range that ends before it starts.
func DecodePunchHole(b []byte) ([]Range, error) {
	if len(b) != PunchHoleBytes {
		return nil, syscall.EINVAL
	}
	n := int32(binary.LittleEndian.Uint32(b))
	if n < 0 || n > MaxPunchRanges {
		return nil, syscall.EINVAL
	}
	ranges := make([]Range, n)
	for i := range ranges {
		r := Range{
			Start: binary.LittleEndian.Uint64(b[16+8*i:]),
			End:   binary.LittleEndian.Uint64(b[16+8*MaxPunchRanges+8*i:]),
		}
		if r.End < r.Start {
			return nil, syscall.EINVAL
		}
		ranges[i] = r
	}
	return ranges, nil
}

// Move requests a rename from the ioctl's directory.
type Move struct {
	SrcParentIno, DstParentIno uint64
	SrcName, DstName           string
	MoveToTrash                bool
}

// DecodeMove decodes the argument. EINVAL: wrong size or name.
func DecodeMove(b []byte) (Move, error) {
	if len(b) != MoveBytes {
		return Move{}, syscall.EINVAL
	}
	m := Move{
		SrcParentIno: binary.LittleEndian.Uint64(b),
		DstParentIno: binary.LittleEndian.Uint64(b[264:]),
		MoveToTrash:  b[528] != 0,
	}
	var err error
	if m.SrcName, err = entryName(b[8:263]); err != nil {
		return Move{}, err
	}
	if m.DstName, err = entryName(b[272:527]); err != nil {
		return Move{}, err
	}
	return m, nil
}

// Remove requests the removal of a name from the ioctl's directory.
type Remove struct {
	ParentIno uint64
	Name      string
	Recursive bool
}

// DecodeRemove decodes the argument. EINVAL: wrong size or name.
func DecodeRemove(b []byte) (Remove, error) {
	if len(b) != RemoveBytes {
		return Remove{}, syscall.EINVAL
	}
	name, err := entryName(b[8:263])
	return Remove{ParentIno: binary.LittleEndian.Uint64(b), Name: name, Recursive: b[264] != 0}, err
}

// entryName returns the name before the NUL, or the whole field without one. EINVAL:
// it cannot name a directory entry.
func entryName(b []byte) (string, error) {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	name := string(b)
	if name == "" || name == "." || name == ".." || bytes.IndexByte(b, '/') >= 0 {
		return "", syscall.EINVAL
	}
	return name, nil
}
