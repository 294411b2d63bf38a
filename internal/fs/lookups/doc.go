// Package lookups counts what engines that keep a file per block have looked up and found, by engine and model, from what
// they do to names and files: the engines themselves say it to nobody.
//
// A hit is the reading of a block's file: of its first bytes by a ring, or through a descriptor that no ring has used while it
// was open. That a file is there is no hit: engines ask before they read, and ask for more than they read.
//
// A miss is a name that is not there. The same name counts once in a minute, unless it was made meanwhile: an engine asks again
// while it waits, and before it writes. A look-up that the kernel makes because somebody makes the name does not count.
//
// Temporary files, files with many blocks and files of no known layout do not count.
package lookups
