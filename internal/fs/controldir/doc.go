// Package controldir implements 3fs-virt, the control directory: names that exist only
// to talk to the daemon (section 2 of the protocol). In iovs, clients register shared
// memory and find the submit semaphores; symlinks in rm-rf delete trees; get-conf and
// set-conf show the settings as files. The package is independent of FUSE: the FUSE
// server passes inode numbers and names and gets attributes and errnos.
//
// It has no state. Registrations belong to the ring server, values to the settings,
// files to the tree.
package controldir
