// Package cred runs file operations with the identity of the client that requested them:
// RunAs where nothing has checked the client's rights yet, CreateAs where the kernel has.
//
// The daemon is one process for many users. Linux keeps credentials per thread, so an
// operation runs on an OS thread of its own, which takes the client's file-system
// identity and restores the daemon's afterwards. A daemon without root has only its own
// identity and acts for no other user.
package cred
