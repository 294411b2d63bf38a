// Package fuseserver serves the mount: it mounts the file tree as fuse.hf3fs and
// answers FUSE requests from the tree and from the control directory 3fs-virt.
//
// Bytes are cached once, in the page cache of the data directory. Files are opened
// with kernel passthrough where the kernel supports and permits it, else with direct
// I/O, never through FUSE's own page cache. So the mount and the rings always see the
// same bytes.
package fuseserver
