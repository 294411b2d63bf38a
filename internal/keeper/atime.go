package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Atimes is what reading a file does to its atime, on one mount: other hosts may mount the same file system
// otherwise.
type Atimes int

// What atimes tell.
const (
	AtimesUnknown Atimes = iota
	AtimesNever          // noatime, or a file system that keeps none
	AtimesDaily          // relatime: a read is seen if it is the first since the last write, or in 24 hours
	AtimesAlways
)

// String says it in the words of mount options.
func (a Atimes) String() string {
	switch a {
	case AtimesNever:
		return "noatime"
	case AtimesDaily:
		return "relatime"
	case AtimesAlways:
		return "strictatime"
	}
	return "unknown"
}

// Tell reports whether an atime can be a use.
func (a Atimes) Tell() bool { return a == AtimesDaily || a == AtimesAlways }

const (
	atimeProbe = "atime-probe"

	// What the kernel takes for long ago, and the future, for which no clock is wrong enough.
	atimeOld   = 48 * time.Hour
	atimeAhead = 12 * time.Hour
)

// ProbeAtimes reads a file that it makes in a directory, and sees whether its atime moves. A client of
// a network file system that has the file in its cache does not ask the server, whose atime then
// stays: there, the answer is AtimesNever.
func ProbeAtimes(dir *os.Root) (_ Atimes, err error) {
	if err := dir.Remove(atimeProbe); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return AtimesUnknown, fmt.Errorf("find out what happens to atimes: %w", err)
	}
	f, err := dir.OpenFile(atimeProbe, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return AtimesUnknown, fmt.Errorf("find out what happens to atimes: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), dir.Remove(atimeProbe)) }()
	if _, err := f.Write([]byte("x")); err != nil {
		return AtimesUnknown, err
	}
	for _, try := range []struct {
		from  time.Duration
		means Atimes
	}{{-atimeOld, AtimesNever}, {atimeAhead, AtimesDaily}} {
		moves, err := readMoves(f, time.Now().Add(try.from))
		if err != nil {
			return AtimesUnknown, fmt.Errorf("find out what happens to atimes: %w", err)
		}
		if !moves {
			return try.means, nil
		}
	}
	return AtimesAlways, nil
}

// readMoves reports whether reading a file moves an atime that was set to a time.
func readMoves(f *os.File, from time.Time) (bool, error) {
	times := []unix.Timespec{{Sec: from.Unix()}, {Nsec: unix.UTIME_OMIT}}
	if err := unix.UtimesNanoAt(int(f.Fd()), "", times, unix.AT_EMPTY_PATH); err != nil {
		return false, err
	}
	if _, err := f.ReadAt(make([]byte, 1), 0); err != nil {
		return false, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, err
	}
	return st.Atim.Sec != from.Unix(), nil
}

// AtimesOf is ProbeAtimes without a change: what the options of a directory's mount say. A file system
// may keep no atimes whatever they say.
func AtimesOf(dir string) (Atimes, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return AtimesUnknown, fmt.Errorf("statfs %s: %w", dir, err)
	}
	switch {
	case st.Flags&unix.ST_NOATIME != 0:
		return AtimesNever, nil
	case st.Flags&unix.ST_RELATIME != 0:
		return AtimesDaily, nil
	}
	return AtimesAlways, nil
}
