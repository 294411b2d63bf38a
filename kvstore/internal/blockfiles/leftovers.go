package blockfiles

import (
	"time"

	"golang.org/x/sys/unix"
)

// leftovers are the files that sweeps have found old, and so perhaps left by dead writers. Some clients of network file systems stamp
// files by their own clocks, so one that a live writer of a host whose clock is behind has just made may look old. It is
// believed to be left only if it was the same, that long ago by this process' clock, when the sweep before looked. It belongs to
// the goroutine that sweeps.
type leftovers struct {
	seen, found map[string]look // by the sweep before, and by this one
}

// look is how a file was found, and since when.
type look struct {
	ino, size uint64
	changed   time.Time
	since     time.Time
}

const (
	// surely is how often the sweep age, with its default a day, a file must have for a single look: clocks do not differ by that.
	surely = 144
	// mostLooks bounds the memory. What is more is left to later sweeps.
	mostLooks = 1 << 16
)

// begin begins a sweep.
func (l *leftovers) begin() { l.seen, l.found = l.found, map[string]look{} }

// isLeft reports whether a file that is so old by its times was left by a dead writer.
func (l *leftovers) isLeft(path string, st unix.Statx_t, old, sweepAge time.Duration) bool {
	switch {
	case old <= sweepAge:
		return false
	case old > surely*sweepAge:
		return true
	}
	is := look{st.Ino, st.Size, changed(st), time.Now()}
	if was, ok := l.seen[path]; ok && was.ino == is.ino && was.size == is.size && was.changed.Equal(is.changed) {
		is.since = was.since
	}
	if len(l.found) < mostLooks {
		l.found[path] = is
	}
	return time.Since(is.since) > sweepAge
}

// changed returns when a file got its content or its name, whichever was later: one that is
// copied with its times, as from a backup, has an old content.
func changed(st unix.Statx_t) time.Time {
	content, name := modified(st), time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec))
	if content.After(name) {
		return content
	}
	return name
}

func modified(st unix.Statx_t) time.Time { return time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)) }
