// Package tree is the tree: inodes, open files and rights over the data
// directory. It knows no FUSE and no ring; the mount door calls it by node
// number, the ring door by inode number.
//
// Errors are of type syscall.Errno, because both doors speak errno and nothing
// here knows more than the kernel said. All methods may be called concurrently.
//
// A node remembers where it was last seen, not a descriptor. Every use opens
// the path below the data directory's descriptor, follows no symbolic link, and
// checks that what it found is still the same inode.
package tree
