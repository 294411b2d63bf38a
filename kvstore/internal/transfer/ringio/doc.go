// Package ringio is transfer.Engine over the rings of a 3FS, through package usrbio.
//
// Moves wait in one row for each direction and go to whichever ring has the most
// room, as many as its entries at a time. Buffers inside registered memory go to the
// daemon as they are. All others go through a staging iov: in pieces, each copied by
// goroutines that do nothing else, so that whoever waits for completions never copies.
//
//	caller ── Do ──> lane (a direction): row of moves ──> ring ──> daemon
//	                      ^  pieces freed: go on            │
//	caller <── Done ──────┴──── waiter of the ring <────────┘
//
// # A daemon that does not answer
//
// A request cannot be taken back. One that is not answered within the engine's time
// is settled and retired: its entry, and its piece of the staging iov, are used again
// when the answer comes after all; while none of a ring's has, moves wait for the other
// rings, or in vain. Memory that was used in place is abandoned, and Close has an error
// where it still is.
//
// # A daemon that is gone
//
// When it stops, everything under way ends with ErrStale within about a second, and
// so does every later move of a file that was opened before: close the File and the
// os.File, and open both again. The first Open that finds a daemon in its place
// connects to it, with all registered memory.
package ringio
