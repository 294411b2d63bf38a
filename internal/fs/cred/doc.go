// Package cred runs file operations as the client that asked for them.
//
// The daemon is one process for many users. Linux keeps credentials per
// thread, so an operation runs on an OS thread of its own that takes the
// client's file-system identity and puts the daemon's back afterwards. A
// daemon without root has one identity only: it acts for nobody else.
package cred
