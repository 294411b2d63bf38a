// Package tree keeps the files of the data directory for its two servers: inodes, open
// files, and who may use them. The FUSE server calls it by node number, the ring server
// by inode number; it knows neither.
//
// Errors are of type syscall.Errno: both servers answer with an errno, and the kernel
// gives no more than that. All methods may be called concurrently.
//
// A node remembers where it was last seen; it holds no descriptor. Every use opens
// the path below the data directory's descriptor, follows no symbolic link, and
// checks that it found the same inode.
package tree
