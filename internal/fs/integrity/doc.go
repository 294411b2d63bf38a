// Package integrity keeps checksums of what the daemon writes into files, and finds out whether
// the same bytes are read later. It knows descriptors, not names, clients or rings.
//
// A sum is the XXH3 of a range of RangeBytes bytes; the last range of a file is as long as the file
// makes it. A File has the sums of one inode that is in use, a Store those of a data directory.
// Sums of files that are not in use lie in a log on the disk, see log.go.
//
// # What a sum can be held against
//
// Sums hold for a state of a file: its inode, time of birth, size and time of modification, as
// fstat showed them right after the daemon's own last write (a stamp). Before its next write, and before a mismatch is believed, the stamp must
// still be the same; otherwise somebody else has changed the file, and all its sums are dropped:
// the bytes are "unknown", and served as they are. Where only its ctime has moved, it may have another
// name or mode, or other bytes and the times of another file (cp -p): sums become soft. What the daemon itself
// does to names and modes it tells the Store, see Move. Writes that overlap in time are bracketed
// together; until the last has ended, the file is in flux and nothing is verified.
//
// Three things can change bytes without moving the stamp that we see: what another process does between
// the beginning of the daemon's write and its fstat, stores through a mapping to a page that was written to
// before, and a client that changes its memory while it is written. Of the first and the second the kernel tells, see watch: who
// can change the file opens it. So each sum has a degree:
//
//   - soft: somebody else was seen to open or change the file, and may still have it open, while the daemon wrote to
//     it; the file system's times are too coarse to tell; or the sum is of another
//     boot, before which times may have been lost. A mismatch means unknown.
//   - firm: nobody was. A mismatch answers EIO, and nothing more happens.
//   - confirmed: the bytes were read and matched, after a moment when the stamp was right and
//     nobody had the file open or mapped for writing (a lease of the kernel says so), and the
//     daemon has not written since. From that moment on every change moves the stamp, so a mismatch
//     with the same stamp is damage.
//
// A mismatch is looked at again in memory of our own before it counts, because clients can change
// the memory that was read into.
//
// Times of change are fine enough where two writes in a row, with an fstat between, get
// different ones (Linux 6.13, most local file systems); elsewhere sums begin soft, and a file is
// sealed only once its last change is older than a tick of the clock. On tmpfs a page that was read
// through a mapping can be written without any time moving: sums become at most firm there, and soft
// again once a client may map the file. Where times are of a second, as with ext4's inodes of 128 bytes, no
// sums are kept.
package integrity

// RangeBytes is what one sum covers: 8 bytes for 128 KiB are 64 MiB for a TiB. Smaller ranges would
// find damage in smaller reads, but XXH3 gains nothing beyond, and the sums are to stay small.
const RangeBytes = 128 << 10
