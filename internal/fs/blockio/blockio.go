// Package blockio reads and writes the files of the data directory for the ring server:
// it moves bytes between a file and a window of client memory, with one copy through the
// page cache or none with direct I/O, and without buffers of its own.
package blockio

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// Mode selects between the page cache and direct I/O.
type Mode int

const (
	// Auto reads from the page cache what is cached, and the rest directly where
	// alignment and file system allow. It writes through the page cache.
	Auto Mode = iota
	// Buffered always uses the page cache.
	Buffered
	// Direct bypasses the page cache wherever alignment and file system allow. It writes
	// through the page cache what that has: a client may have the page mapped, and one that
	// it stores to during a direct write would later undo that.
	Direct
	// Shared keeps nothing in the page cache, neither before nor after a request: other hosts
	// change the files, and no page cache would hear of it.
	Shared
)

// ParseMode parses auto, buffered or direct; an empty string is auto.
func ParseMode(s string) (Mode, error) {
	switch s {
	case "auto", "":
		return Auto, nil
	case "buffered":
		return Buffered, nil
	case "direct":
		return Direct, nil
	}
	return 0, fmt.Errorf("I/O mode %q is unknown: use auto, buffered or direct", s)
}

func (m Mode) String() string { return [...]string{"auto", "buffered", "direct", "shared"}[m] }

const (
	// SectorBytes is the alignment at which direct I/O is tried. Devices with smaller
	// sectors would accept less; no device in use requires more.
	SectorBytes = 4096

	// autoDirectBytes is the smallest request that Auto reads directly: for a smaller
	// one, a device round trip costs more than the page cache's copy.
	autoDirectBytes = 128 << 10
)

// File is an open file that the tree lends. Its descriptors stay valid until the
// borrower releases it.
type File interface {
	FD() int
	// DirectFD returns a descriptor of the same file opened with O_DIRECT; ok is false
	// where the file system has no direct I/O.
	DirectFD() (fd int, ok bool)
	// OnDataDevice reports whether the file is on the data directory's file system, so
	// that the mover's Kind applies: another one may be mounted below.
	OnDataDevice() bool
	// Confine reports whether a write of that many bytes must run in cred.Confined: its
	// user is not the super-user and must not use the super-user's share of the disk.
	Confine(bytes int64) bool
}

// Kind is a kind of file system, as far as it decides how to read a file.
type Kind int8

const (
	// Disk may wait for a device, and can report what is cached.
	Disk Kind = iota
	// Memory never waits: tmpfs.
	Memory
	// Foreign cannot report what is cached: network file systems, FUSE.
	Foreign
)

// KindOf returns the kind of a directory's file system.
func KindOf(dir string) Kind {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return Foreign
	}
	return kindOf(&st)
}

// KindOfFile returns the kind of an open file's file system.
func KindOfFile(fd int) Kind {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return Foreign
	}
	return kindOf(&st)
}

func kindOf(st *unix.Statfs_t) Kind {
	switch st.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return Memory
	case unix.NFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, lustreMagic:
		return Foreign
	}
	return Disk
}

const lustreMagic = 0x0bd00bd0

// Mover moves bytes in one mode, for a data directory of one kind. It has no state:
// any number of goroutines may use it at once.
type Mover struct {
	Mode Mode
	Kind Kind // of the data directory
	// Sync, while it is true, makes every write of Shared end with fdatasync: without it, other hosts may not see
	// what was written. Nil is false.
	Sync *atomic.Bool
}

// Read fills w from offset off of f, with zeros where the file has a hole, and stops
// short only at the end of the file. windowOff is w's offset from a page boundary of
// memory; only its alignment matters. waited reports that some bytes may not have been
// in memory. The error is a syscall.Errno: EFAULT where a part of w is not there, even if
// the bytes before it were read.
func (m Mover) Read(f File, w shm.Window, windowOff, off int64) (n int64, waited bool, err error) {
	return m.ReadPieces(f, w, windowOff, off, Pieces{})
}

// Pieces divides what is copied from or to memory, so that somebody can look at each piece while the processor has it in
// its cache: they end at multiples of Bytes of the file. The zero value does not divide.
type Pieces struct {
	Bytes int64
	Moved func(n int64) // so much of the window has been moved
}

// copy calls a copying system call for each piece of w, which belongs at off of a file and begins after
// the first done bytes of the window. It ends with the first call that is short.
func (p Pieces) copy(w shm.Window, off, done int64, call func(w shm.Window, off int64) (int64, error)) (n int64, err error) {
	if p.Bytes == 0 {
		return call(w, off)
	}
	for n < w.Len() {
		piece := w.From(n).First(p.Bytes - (off+n)%p.Bytes)
		got, err := call(piece, off+n)
		if n += got; got > 0 {
			p.Moved(done + n)
		}
		if err != nil || got < piece.Len() {
			return n, err
		}
	}
	return n, nil
}

// ReadPieces is Read. What it copies from memory, and not what it reads from a device, is divided.
func (m Mover) ReadPieces(f File, w shm.Window, windowOff, off int64, pieces Pieces) (n int64, waited bool, err error) {
	if m.Mode == Shared {
		n, err = readShared(f, w, windowOff, off)
		return n, true, err
	}
	direct := m.Mode != Buffered && aligned(windowOff, off, w.Len()) && (m.Mode == Direct || w.Len() >= autoDirectBytes)
	kind := m.Kind
	if !f.OnDataDevice() {
		kind = Foreign
	}
	var cached func(w shm.Window, off int64) (int64, error)
	switch {
	case direct && m.Mode == Direct, kind == Foreign:
	case kind == Memory:
		cached = func(w shm.Window, off int64) (int64, error) { return w.RawPread(f.FD(), off) }
	default:
		cached = func(w shm.Window, off int64) (int64, error) { return w.RawPreadCached(f.FD(), off) }
	}
	for cached != nil && n < w.Len() {
		piece := w.From(n).First(rawBytes)
		if direct && kind == Disk {
			has, ok := inCache(f.FD(), off+n, piece.Len())
			if !ok {
				break
			}
			piece = piece.First(has)
		}
		got, err := pieces.copy(piece, off+n, n, cached)
		n += got
		switch {
		case err != nil, kind == Disk && got < piece.Len() && got > 0:
			// The rest is not in memory, or the file system cannot report it, or the
			// client's memory is not there: the next call says which.
			cached = nil
		case got == 0:
			// Only this is the end of the file. A short count may be a fault in the
			// client's memory, which the next call reports.
			return n, false, nil
		}
	}
	if n == w.Len() {
		return n, false, nil
	}
	var rest int64
	if direct && n%SectorBytes == 0 {
		rest, err = readDirect(f, w.From(n), off+n)
	} else {
		rest, err = readFull(f.FD(), w.From(n), off+n)
	}
	return n + rest, true, err
}

// rawBytes is how much is copied from memory in one call that is not announced to Go's
// scheduler: less than 100 µs.
const rawBytes = 1 << 20

// Write stores w at offset off of f. After an error, a leading part may have been
// stored. It is never short without an error. waited reports that it may have waited for more
// than memory.
func (m Mover) Write(f File, w shm.Window, windowOff, off int64) (n int64, waited bool, err error) {
	return m.WritePieces(f, w, windowOff, off, Pieces{})
}

// WritePieces is Write. What is copied is divided, except what direct I/O writes; for a disk's page cache into pieces of a MiB at least.
func (m Mover) WritePieces(f File, w shm.Window, windowOff, off int64, pieces Pieces) (n int64, waited bool, err error) {
	if m.Mode == Shared {
		write := func() (err error) {
			n, err = writeShared(f, w, windowOff, off, m.Sync != nil && m.Sync.Load())
			return err
		}
		if f.Confine(w.Len()) {
			err = cred.Confined(write)
		} else {
			err = write()
		}
		return n, true, err
	}
	inMemory := m.Kind == Memory && f.OnDataDevice()
	direct := -1
	if m.Mode == Direct && aligned(windowOff, off, w.Len()) {
		if fd, ok := f.DirectFD(); ok {
			direct = fd
		}
	}
	if !f.Confine(w.Len()) {
		if inMemory {
			n, err = writeMemory(f.FD(), w, off, pieces)
			return n, false, err
		}
		n, err = write(f.FD(), direct, w, off, pieces)
		return n, true, err
	}
	err = cred.Confined(func() (err error) {
		n, err = write(f.FD(), direct, w, off, pieces)
		return err
	})
	return n, !inMemory, err
}

// writeMemory writes to a file in memory, which just copies.
func writeMemory(fd int, w shm.Window, off int64, pieces Pieces) (n int64, err error) {
	for n < w.Len() && err == nil {
		var got int64
		got, err = pieces.copy(w.From(n).First(rawBytes), off+n, n, func(w shm.Window, off int64) (int64, error) { return w.RawPwrite(fd, off) })
		n += got
		switch {
		case err == unix.EINTR:
			err = nil
		case err == nil && got == 0:
			err = unix.EIO // POSIX does not allow 0 for a non-empty write
		}
	}
	return n, err
}

// write writes to direct, if that is not negative and accepts it and the page cache has none
// of the bytes, and else to buffered.
func write(buffered, direct int, w shm.Window, off int64, pieces Pieces) (int64, error) {
	if direct >= 0 && !anyInCache(buffered, off, w.Len()) {
		n, err := writeFull(direct, w, off)
		switch {
		case err != nil && !refusesDirect(err):
			return n, err
		case err == nil && !anyInCache(buffered, off, n):
			return n, nil
		}
		// Pages that have come meanwhile may be older than what was written.
	}
	if pieces.Bytes > 0 {
		pieces.Bytes = max(pieces.Bytes, diskPieceBytes)
	}
	return pieces.copy(w, off, 0, func(w shm.Window, off int64) (int64, error) { return writeFull(buffered, w, off) })
}

// diskPieceBytes is how much goes to the page cache of a disk in one call, at least: for 128 KiB at a time, ext4 took a sixth longer.
const diskPieceBytes = 1 << 20

// HasHole reports whether [off, off+n) has a hole before the end of the file. The file
// system reports holes in units of its blocks.
func HasHole(fd int, off, n int64) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	end := min(off+n, st.Size)
	if off >= end {
		return false, nil
	}
	// No code uses the descriptor's position: all I/O is positional.
	hole, err := unix.Seek(fd, off, unix.SEEK_HOLE)
	if err == unix.ENXIO { // truncated in between
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return hole < end, nil
}

func aligned(offsets ...int64) bool {
	for _, o := range offsets {
		if o%SectorBytes != 0 {
			return false
		}
	}
	return true
}

func readDirect(f File, w shm.Window, off int64) (int64, error) {
	fd, ok := f.DirectFD()
	if !ok {
		return readFull(f.FD(), w, off)
	}
	var done int64
	for done < w.Len() {
		n, err := w.From(done).Pread(fd, off+done)
		switch {
		case err != nil && err != unix.EFAULT && !refusesDirect(err):
			return done, err
		case err == nil && n == 0:
			return done, nil
		}
		done += n
		// No direct I/O here, or close to the end of the file: a direct read requires the
		// whole window to be there, even where it ends behind the file.
		if err != nil || n%SectorBytes != 0 {
			rest, err := readFull(f.FD(), w.From(done), off+done)
			return done + rest, err
		}
	}
	return done, nil
}

func refusesDirect(err error) bool { return err == unix.EINVAL || err == unix.EOPNOTSUPP }

func readFull(fd int, w shm.Window, off int64) (int64, error) {
	var done int64
	for done < w.Len() {
		n, err := w.From(done).Pread(fd, off+done)
		if err != nil {
			return done, err
		}
		if n == 0 {
			break
		}
		done += n
	}
	return done, nil
}

func writeFull(fd int, w shm.Window, off int64) (int64, error) {
	var done int64
	for done < w.Len() {
		n, err := w.From(done).Pwrite(fd, off+done)
		if err != nil {
			return done, err
		}
		if n == 0 {
			return done, unix.EIO // POSIX does not allow 0 for a non-empty write
		}
		done += n
	}
	return done, nil
}
