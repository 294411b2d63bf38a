// Package lease makes one of many hosts the keeper of a directory that they share, by files in that
// directory alone: no lock and no clock of another host counts.
//
// # The files
//
// Each tenure has a file, lease-000000000042, whose number is its fencing token. Whoever makes the
// file with the next number (O_EXCL, which is atomic on NFS, too) has the lease, once it has removed
// all files with lower numbers. The file says who that is, and changes with each renewal. Renewals
// overwrite it in place, which needs no space; if that fails on a full disk, setting its mtime counts.
//
// # Who may take over
//
// A lease may be taken when its file says that it was released, or when it has not changed for
// longer than its period, by the watcher's own clock: the watcher compares what it sees with what it saw,
// and no time with another host's. A lease that its holder has not renewed for half of its period is
// of no use to it either, by the holder's own clock; it may take it anew as others may. So two clocks must go at about the same rate (one
// not at twice the other's), and need not show the same time.
//
// # A holder that was paused
//
// No file system refuses a write because its writer's lease is over. So before each change a holder
// calls Check, which fails if the lease is too old by the holder's clock, or its file is gone, or
// another one has been made since. A holder that was stopped between Check and its change makes that
// change: one, whatever it is. What is protected by a lease must therefore bear one such
// change; the removal of a cache entry does.
//
// # Attribute caches
//
// Lists of names may be old by the time for which a client of a distributed file system caches
// them. So Check opens its own file by name, which such clients ask the server for, and
// the next holder removes that file rather than change or rename it. Whoever goes by an old
// list and makes a file with a number that was used before finds a higher one in the list that it reads
// after that, which its own change to the directory has made fresh, and withdraws. The
// holder removes lower numbers at each renewal, too.
package lease
