// Package tree keeps the files of the data directory for its two servers: inodes, open
// files, and who may use them. The FUSE server calls it by node number, the ring server
// by inode number.
//
// Errors are of type syscall.Errno: the kernel returns nothing else, and both servers
// reply with it. All methods may be called concurrently.
//
// A node remembers where it was last seen; it holds no descriptor. Every use opens
// the path below the data directory's descriptor, follows no symbolic link, and
// checks that it found the same inode.
package tree
