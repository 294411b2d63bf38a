// Package usrbio reads and writes files on a 3FS mount through shared memory,
// without a system call per request. It is a pure Go client of the ring protocol of
// DeepSeek's 3FS ("USRBIO") and talks to a kv3fs daemon or to a real
// hf3fs_fuse_main.
//
// The types, in the order in which a program needs them:
//
//	m, err := usrbio.Open(ctx, "/mnt/3fs/some/dir")           // the mount that holds this path
//	buf, err := m.NewIov(ctx, 64<<20, usrbio.IovOptions{})    // memory the daemon can reach
//	ring, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 256})
//	f, err := m.Register(ctx, osFile)                         // a file that requests may name
//
//	for i := range int64(blocks) { // queue requests, without a system call
//		ring.Prepare(usrbio.Request{
//			File: f, FileOffset: i * blockBytes,
//			Iov: buf, IovOffset: i * blockBytes,
//			Bytes: blockBytes, Userdata: uint64(i),
//		})
//	}
//	ring.Submit()                                             // wake the daemon, once
//	n, err := ring.Wait(ctx, completions, blocks)             // collect the results
//
// A Mount holds the registrations with one daemon. An Iov is a block of shared
// memory for data; Iov.Bytes is an ordinary byte slice. A Ring carries requests in
// one direction: one made with Write moves bytes from iovs to files, any other from
// files to iovs. A File is an open file, which the daemon knows by its inode number.
//
// # Ownership
//
// From Prepare until Wait has returned the Completion, the request's bytes of the
// Iov belong to the daemon: do not read them (on a ring that reads) or change them
// (on either kind), and keep File and Iov open. A request cannot be cancelled. If a
// wait ends early, by its context or by an error, the requests without a Completion
// stay in flight, and their memory stays the daemon's. To give that memory up,
// close the Iov and make another one.
//
// # Results
//
// Completion.Result is the number of bytes moved, or a negative errno. A short read
// has reached the end of the file or, on a real 3FS, perhaps a hole at its end; a
// reader of fixed-size blocks takes it as "not there". Writes through a ring bypass
// this program's page cache.
//
// # When the daemon stops
//
// A kv3fs that keeps state for the one after it (serve --restart-state) says so in each
// ring: then Wait and Prepare go on for a minute, and a daemon that has begun by then
// completes what was prepared. Everything else of a daemon that stopped is unusable, even if
// a new one has taken over the same directory, unless somebody has kept its mount. Within
// about a second, or after that minute, the calls of this package return ErrDaemonGone; none
// waits for longer, and Mount.Probe asks. Open the Mount
// again, move iovs whose content is worth it with Mount.AdoptIov, and close the old
// Mount, which closes everything else made through it. Rings and files are made again.
//
// A daemon may also be there and not answer, for example stopped in a debugger.
// Every call that needs an answer takes a context and waits at most until the
// context ends, or for 30 seconds. After one wait of 30 seconds, calls that need an
// answer, such as making and closing rings and iovs, fail with ETIMEDOUT at once
// until the daemon answers again. Requests on rings do not depend on such answers.
//
// # Concurrency
//
// All methods may be called by any number of goroutines, and Close at any time.
// Callers of a Ring's Prepare and Submit take turns on one lock, callers of Wait on
// another. Usually one goroutine prepares and one waits, on as many rings as there
// are such pairs. Whatever a goroutine did before Prepare happens before the return
// of the Wait that delivers the Completion.
//
// Each Mount occupies one operating system thread: a real 3FS cleans up after a dead
// client by the thread that registered, and Go moves goroutines between threads.
package usrbio
