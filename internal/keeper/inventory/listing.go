package inventory

import (
	"bytes"
	"encoding/binary"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// dirent is an entry of a directory as a listing shows it.
type dirent struct {
	Name string
	Ino  uint64
	Type uint32 // S_IFMT bits, 0 when unknown
}

const listBytes = 32 << 10

// list calls fn with the entries of an open directory whose inode numbers are wanted, as long as it
// returns true. nil: all are.
func list(fd int, buf []byte, wanted func(ino uint64) bool, fn func(dirent) bool) error {
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		for rest := buf[:n]; len(rest) > 0; {
			e, name, size := parseEntry(rest)
			if size == 0 {
				return unix.EIO
			}
			rest = rest[size:]
			if string(name) == "." || string(name) == ".." || wanted != nil && !wanted(e.Ino) {
				continue
			}
			e.Name = string(name) // a million that are not wanted would be garbage
			if !fn(e) {
				return nil
			}
		}
	}
}

// parseEntry decodes a linux_dirent64; size is 0 when it is malformed. The name is apart.
func parseEntry(b []byte) (e dirent, name []byte, size int) {
	const header = 19
	if len(b) < header {
		return e, nil, 0
	}
	size = int(binary.NativeEndian.Uint16(b[16:]))
	if size < header || size > len(b) {
		return e, nil, 0
	}
	name, _, _ = bytes.Cut(b[header:size], []byte{0})
	return dirent{Ino: binary.NativeEndian.Uint64(b), Type: uint32(b[18]) << 12}, name, size
}

func keyOf(st *unix.Statx_t) Key {
	return Key{Dev: uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), Ino: st.Ino}
}

// statAt returns the status of an entry, or of dir itself if entry is "".
func statAt(dir int, entry string) (st unix.Statx_t, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if entry == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	for {
		err = unix.Statx(dir, entry, flags, unix.STATX_BASIC_STATS, &st)
		if err != unix.EINTR {
			return st, err
		}
	}
}

const (
	// openat2 takes PATH_MAX bytes with the NUL; longer paths are opened in steps.
	longestStepBytes = 4000
	// A scoped open may fail with EAGAIN because of a rename anywhere.
	openTries = 64
	openPause = time.Millisecond
)

// openBeneath opens a directory below dir for reading. It never leaves dir, enters no other
// file system and follows no symbolic link.
func openBeneath(dir int, path string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NOATIME,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	rest := ""
	if len(path) > longestStepBytes {
		if cut := strings.LastIndexByte(path[:longestStepBytes], '/'); cut > 0 {
			path, rest = path[:cut], path[cut+1:]
		}
	}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(dir, path, &how)
		switch {
		case err == unix.EPERM && how.Flags&unix.O_NOATIME != 0:
			how.Flags &^= unix.O_NOATIME // another user's directory
		case err == unix.EINTR:
		case err == unix.EAGAIN && try < openTries:
			time.Sleep(openPause)
		case err != nil:
			return -1, err
		case rest == "":
			return fd, nil
		default:
			defer unix.Close(fd)
			return openBeneath(fd, rest)
		}
	}
}
