// Package ringio moves bytes through the rings of a 3FS: it is a transfer.Engine over
// package usrbio.
//
// Moves wait in one queue for each direction, reading and writing. They go to whichever
// ring has the most room, as many at a time as it has entries. Buffers inside registered
// memory go to the daemon as they are. All others go through a staging iov, in pieces.
// Goroutines that do nothing else copy them, so that the goroutine that waits for
// completions never copies. At most 4 MiB of writes are under way at once, so that reads do
// not wait for many in the device.
//
//	caller ── Do ──> direction: queue of moves ──> ring ──> daemon
//	                      ^  pieces freed: go on     │
//	caller <── Done ──────┴── waiter of the ring <───┘
//
// # A daemon that does not answer
//
// A request cannot be taken back. One that is not answered within the engine's timeout, while
// none that began before it is either, is settled and retired. Its entry, and its piece of the staging iov, are used again
// when the answer comes after all. While all entries of a ring are retired, moves wait
// for the other rings; if there are none, they time out. Memory that was used in place
// is abandoned, and Close returns an error while it still is.
//
// # A daemon that is gone
//
// When the daemon stops, everything under way ends with ErrStale within about a second,
// and so does every later move of a file that was opened before: close the File and the
// os.File, and open both again. The first Open that finds a new daemon connects to it
// and registers all memory with it.
package ringio
