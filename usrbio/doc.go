// Package usrbio moves bytes between files on a 3FS mount and shared memory
// without a system call per request. It speaks the ring protocol of DeepSeek's
// 3FS ("USRBIO") to a kv3fs daemon or to a real hf3fs_fuse_main, in pure Go.
//
// The pieces, in the order a program meets them:
//
//	m, err := usrbio.Open("/mnt/3fs/some/dir")            // the mount this path is on
//	buf, err := m.NewIov(64<<20, usrbio.IovOptions{})     // memory the daemon can reach
//	ring, err := m.NewRing(usrbio.RingOptions{Entries: 256})
//	f, err := m.Register(osFile)                          // a file rings may name
//
//	for i := range blocks {                               // ask: no system call
//		ring.Prepare(f, blocks[i].Offset, buf, i*blockBytes, blockBytes, uint64(i))
//	}
//	ring.Submit()                                         // wake the daemon, once
//	n, err := ring.Wait(ctx, completions, len(blocks))    // collect
//
// A Mount is the registration desk. An Iov is a block of shared memory that
// holds data; Iov.Bytes is an ordinary byte slice. A Ring carries requests, in
// one direction only: one made with Write reads from iovs and writes to files,
// any other one fills iovs from files. A File is an open file, known to the
// daemon by its inode number.
//
// # Ownership
//
// From Prepare until its Completion has come out of Wait, the request's bytes
// of the Iov belong to the daemon: do not read them (for a ring that reads) or
// change them (either kind), and keep File and Iov open. A request cannot be
// taken back. Where a wait ends early, by its context or by an error, the
// requests without a Completion stay in flight and so does their memory; to be
// rid of it, close the Iov and make another one.
//
// # Results
//
// Completion.Result is the number of bytes moved, or a negative errno. A read
// that is short has met the end of the file, and on a real 3FS perhaps a hole
// at its end: a reader of fixed-size blocks takes it as "not there". Files that
// are written through a ring bypass this program's page cache.
//
// # When the daemon goes away
//
// Rings, iovs and files of a daemon that stopped are dead, also when a new
// daemon has taken over the same directory. Within about a second the calls of
// this package say so with ErrDaemonGone; none waits for a dead daemon. Close
// the Mount, which closes everything made through it, and Open it again.
//
// A daemon that is there and does not answer (stopped in a debugger, say) is
// waited for once, for 30 seconds. From then on whatever must ask it, such as
// making and closing rings and iovs, fails with ETIMEDOUT at once: Close the
// Mount here, too. Rings do not depend on such answers.
//
// # Concurrency
//
// All methods may be called by any number of goroutines, and Close at any time.
// Ring's methods take turns: all callers of Prepare and Submit on one lock, all
// callers of Wait on another. The usual arrangement is one goroutine that
// prepares and one that waits, on as many rings as there are such pairs.
// Whatever a goroutine did before Prepare happens before the return of the Wait
// that delivers the Completion.
//
// One thread of the operating system is set aside for each Mount: a real 3FS
// cleans up after a dead client by the thread that registered, and Go moves
// goroutines between threads at will.
package usrbio
