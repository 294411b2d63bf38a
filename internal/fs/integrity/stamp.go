package integrity

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// stamp is a state of a file, which every change of its bytes moves.
type stamp struct {
	ino     uint64
	birthNs int64 // 0 where the file system keeps none
	mtimeNs int64
	size    int64
	ctimeNs int64 // renames, links and the like move it, too
}

// sameBytes reports whether only the time of change tells them apart.
func (s stamp) sameBytes(other stamp) bool {
	s.ctimeNs = other.ctimeNs
	return s == other
}

func look(fd int) (stamp, error) { return lookAtName(fd, "") }

func lookAtName(dir int, name string) (stamp, error) {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_SIZE|unix.STATX_MTIME|unix.STATX_CTIME|unix.STATX_BTIME, &st)
	if err != nil {
		return stamp{}, err
	}
	s := stamp{ino: st.Ino, mtimeNs: st.Mtime.Sec*1e9 + int64(st.Mtime.Nsec), size: int64(st.Size), ctimeNs: st.Ctime.Sec*1e9 + int64(st.Ctime.Nsec)}
	if st.Mask&unix.STATX_BTIME != 0 {
		s.birthNs = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return s, nil
}

// Supported returns why sums cannot be kept of the files below a directory, or "": other hosts, or
// another file system beneath, must not be able to change them unseen.
func Supported(dir string) (why string) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err.Error()
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC:
		if !keepsBirths(dir) {
			return "its inodes are of 128 bytes, whose times are of a second, and two changes within one could not be told apart: mkfs.ext4 -I 256"
		}
		return coarse(dir)
	case unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return coarse(dir)
	}
	return fmt.Sprintf("its file system (type %#x) is not known to show every change of a file in the file's times", st.Type)
}

func keepsBirths(dir string) bool {
	now, err := lookAtName(unix.AT_FDCWD, dir+"/.")
	return err == nil && now.birthNs != 0
}

// coarse returns why the times of files in dir are too coarse to tell a change, or "".
func coarse(dir string) (why string) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return "" // it cannot be tried where nothing can be written
	}
	defer unix.Close(fd)
	// A time that is set is rounded as all others are.
	const ns = 123456789
	at := []unix.Timespec{{Sec: 1, Nsec: ns}, {Sec: 1, Nsec: ns}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprint("/proc/self/fd/", fd), at, 0); err != nil {
		return err.Error()
	}
	now, err := look(fd)
	if err != nil {
		return err.Error()
	}
	if grain := 1e9 + ns - now.mtimeNs; grain < 0 || grain > int64(time.Millisecond) {
		return "the times of its files are coarser than a millisecond"
	}
	return ""
}

func inMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}

// tickNs is more than the period of the coarse clock that file systems read, on any kernel.
const tickNs = int64(20 * time.Millisecond)

// FineTimes reports whether each change of a file in dir gets another time than the one before, if
// that was looked at.
func FineTimes(dir string) bool {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	const tries = 64 // on a busy machine most may tell nothing
	for range tries {
		if fine, sure := distinctTimes(fd); sure {
			return fine
		}
	}
	return false
}

// distinctTimes reports whether changes in a row of an open file get times of their own. It is not sure if it took so
// long that they do on any clock.
func distinctTimes(fd int) (fine, sure bool) {
	const times = 64 // 64 ticks cannot pass meanwhile, on a clock that is coarse
	began := time.Now()
	last, err := look(fd)
	for i := range times {
		if err != nil {
			return false, true
		}
		if err = unix.Fchmod(fd, 0o400|uint32(i%2)<<7); err != nil { // which a full disk has room for
			return false, true
		}
		var now stamp
		if now, err = look(fd); err == nil && now.ctimeNs == last.ctimeNs {
			return false, true
		}
		last = now
	}
	return true, time.Since(began) < times*time.Millisecond
}

// old reports whether a change from now on gets another time than s has.
func (s stamp) old() bool {
	var now unix.Timespec
	return unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now) == nil && now.Nano() > max(s.mtimeNs, s.ctimeNs)+tickNs
}

// unshared reports whether nobody else has the file of fd open or mapped for writing.
// The kernel grants a lease only then; it ends at once.
func unshared(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return false
	}
	kind := unix.F_RDLCK
	if flags&unix.O_ACCMODE != unix.O_RDONLY {
		kind = unix.F_WRLCK // which counts this descriptor
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, kind); err != nil {
		return false
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}
