package restart

import "golang.org/x/sys/unix"

// The state is in a tmpfs that others need, and clients decide how much of it there is. So all of it together takes at most a
// part of the tmpfs, and each user a share of that, see package quota. What finds no room is not noted: its client loses it with
// the daemon, and nobody else does.
const (
	roomPart = 8 // the tmpfs, divided by this
	// roomOfNone is that in a tmpfs without a bound.
	roomOfNone = 256 << 20
)

// roomIn returns how many bytes the state in a directory may have.
func roomIn(path string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || st.Blocks == 0 {
		return roomOfNone
	}
	return int64(st.Blocks) / roomPart * st.Bsize
}

// Take takes room for n bytes that a user has the daemon keep, and reports whether there is that much. Whoever writes a log counts its
// garbage, and the copy in Compact, too.
func (d *Dir) Take(uid uint32, n int64) bool {
	if d.room.Take(uid, n) {
		return true
	}
	select {
	case d.refused <- uid:
	default:
	}
	return false
}

// Return takes back n bytes.
func (d *Dir) Return(uid uint32, n int64) { d.room.Return(uid, n) }

// Refused receives a user whom Take has refused something, unless it has one already that nobody has looked at.
func (d *Dir) Refused() <-chan uint32 { return d.refused }

// Small returns n, or less where the room for all is small: how large a log may be that is not worth compacting.
func (d *Dir) Small(n int64) int64 { return min(n, d.room.Max()/32) }
