// Package blockio moves bytes between files and windows: between the data
// directory and memory that belongs to a client. One copy through the page
// cache, or none with direct I/O; never a buffer of our own in between.
package blockio

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// Mode says which way bytes take.
type Mode int

const (
	// Auto reads what the page cache has from there and the rest directly,
	// where alignment and file system allow; it writes through the page cache.
	Auto Mode = iota
	// Buffered always uses the page cache.
	Buffered
	// Direct bypasses the page cache wherever alignment and file system allow.
	Direct
)

// ParseMode reads auto, buffered or direct.
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

func (m Mode) String() string { return [...]string{"auto", "buffered", "direct"}[m] }

const (
	// SectorBytes is the alignment at which direct I/O is tried. Devices with
	// smaller sectors would take less; none in use takes only more.
	SectorBytes = 4096

	// autoDirectBytes is the least request that Auto reads directly: below it,
	// one device round trip costs more than the page cache's copy.
	autoDirectBytes = 128 << 10
)

// File is an open file as the stage lends it: descriptors stay valid while the
// borrower holds it.
type File interface {
	FD() int
	// DirectFD is the same file opened O_DIRECT; ok is false where the file
	// system has no direct I/O.
	DirectFD() (fd int, ok bool)
	// OnDataDevice tells whether the mover's kind is the file's: another file
	// system may be mounted below.
	OnDataDevice() bool
}

// Kind is what one must know of a file's file system to read it well.
type Kind int8

const (
	// Disk may have to wait for a device, but tells what is cached.
	Disk Kind = iota
	// Memory never waits: tmpfs.
	Memory
	// Foreign cannot tell what is cached: network file systems, FUSE.
	Foreign
)

// KindOf looks at a directory's file system.
func KindOf(dir string) Kind {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return Foreign
	}
	switch st.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return Memory
	case unix.NFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, lustreMagic:
		return Foreign
	}
	return Disk
}

const lustreMagic = 0x0bd00bd0

// Mover moves bytes by one mode, in files of one kind. It has no state: any
// number of goroutines may use it at once.
type Mover struct {
	Mode Mode
	Kind Kind // of the data directory
}

// Read fills w from offset off of f, zeros where the file has a hole, and stops
// short only at the end of the file. windowOff is w's offset from a page
// boundary of memory; only its alignment matters. waited says that the bytes
// were perhaps not in memory. The error is a syscall.Errno.
func (m Mover) Read(f File, w shm.Window, windowOff, off int64) (n int64, waited bool, err error) {
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
		got, err := cached(piece, off+n)
		n += got
		switch {
		case err != nil, kind == Disk && got < piece.Len() && got > 0:
			cached = nil // the rest is not in memory, or the file system cannot tell
		case got == 0, got < piece.Len():
			return n, false, nil // the end of the file
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

// rawBytes is how much is copied from memory in one call that Go's scheduler
// does not know of: less than 100 µs.
const rawBytes = 1 << 20

// Write stores w at offset off of f. On an error some leading part may have
// been stored.
func (m Mover) Write(f File, w shm.Window, windowOff, off int64) (int64, error) {
	if m.Mode == Direct && aligned(windowOff, off, w.Len()) {
		if fd, ok := f.DirectFD(); ok {
			n, err := writeFull(fd, w, off)
			if err == nil || !refusesDirect(err) {
				return n, err
			}
		}
	}
	return writeFull(f.FD(), w, off)
}

// HasHole tells whether [off, off+n) meets a hole before the end of the file.
// The answer is as fine as the file system's block size.
func HasHole(fd int, off, n int64) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	end := min(off+n, st.Size)
	if off >= end {
		return false, nil
	}
	// The descriptor's position is nobody's business: all I/O here is positional.
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
		case err != nil && !refusesDirect(err):
			return done, err
		case err == nil && n == 0:
			return done, nil
		}
		done += n
		if err != nil || n%SectorBytes != 0 { // no direct I/O here, or the end of the file is near
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
			return done, unix.EIO // POSIX has no such answer to a non-empty write
		}
		done += n
	}
	return done, nil
}
