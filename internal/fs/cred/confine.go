package cred

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// nobody is the uid of no user: it owns nothing and has no share of a disk's reserve.
const nobody = 65534

// Confined runs fn, on this goroutine and its thread, without what the super-user may do
// to the contents of files: with fsuid nobody and without the capabilities that go with it.
// So a write through an open descriptor gets ENOSPC where another user's would, although
// blocks are left that the file system keeps for the super-user, and it clears set-id bits.
// Capabilities that are not about files, such as CAP_SYS_ADMIN, stay in force.
//
// fn should use descriptors, since nobody can reach few paths. It must not be called
// within RunAs or CreateAs. Confined may be called concurrently; it costs about 2 µs. Its
// own error is ENOMEM; else it returns that of fn.
func Confined(fn func() error) error {
	if !confinable() {
		return fn()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if !setFSUID(nobody) {
		return unix.ENOMEM
	}
	defer func() {
		// Going back needs no right, but memory for the kernel's record of it. No other
		// goroutine may run on this thread before that.
		for !setFSUID(0) {
			time.Sleep(time.Millisecond)
		}
	}()
	return fn()
}

// confinable reports whether there is something to give up, and a nobody: a user
// namespace may lack one, and its root has no share of a reserve.
var confinable = sync.OnceValue(func() bool {
	if !privileged() {
		return false
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ok := setFSUID(nobody)
	return setFSUID(0) && ok
})

func setFSUID(uid int) bool {
	setFS(unix.SYS_SETFSUID, uid) // reports the previous value, never an error
	return setFS(unix.SYS_SETFSUID, -1) == uid
}
