// Package controldir is the tree under 3fs-virt, names that exist only to talk to the
// daemon (section 2 of the protocol): iovs, where shared memory is registered
// and the submit semaphores are found; rm-rf, whose symlinks delete trees;
// get-conf and set-conf, the settings as files. It knows no FUSE: the mount
// asks it about inode numbers and names and gets attributes and errnos.
//
// The tree has no state. Registrations belong to the ring door, values to the
// settings, files to the stage.
package controldir
