// Package fuseserver is the mount door: it mounts the stage as fuse.hf3fs and turns
// FUSE calls into calls of the stage and of the virtual tree 3fs-virt.
//
// Bytes are cached once, in the page cache of the data directory: files are
// opened with kernel passthrough where the kernel has it and lets us, else with
// direct I/O, never through FUSE's own page cache. So the mount and the rings
// always see the same bytes.
package fuseserver
