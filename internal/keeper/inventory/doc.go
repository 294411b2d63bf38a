// Package inventory knows, in memory, what a directory and everything below it take on
// disk: each file by its inode, and each directory with the totals of all that is below
// it. So what a directory takes is looked up, not counted, and a limit on what it may
// take is checked where a file is about to grow.
//
// It learns of files from events (Created, Settle, Removed ...), which the owner of the
// directory sends as they happen, and from Scan, which reads the directory itself. Where
// the two differ, events win. A file's name is not kept: there may be millions of files.
//
// What a file or directory takes are its allocated blocks, each inode once, as du counts
// them. A file with several names is charged to the directory of one of them; a file that was
// removed while in use is charged until its last use ends. Symbolic links and the like count
// nothing.
//
// Lock order: a shard's mu, then directories.mu. No system call is made under either.
package inventory
