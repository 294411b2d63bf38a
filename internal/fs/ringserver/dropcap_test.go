package ringserver

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// lockAndDrop runs fn without a capability, on a thread that ends with its goroutine.
func lockAndDrop(capability int, fn func(), done chan<- error) {
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	if err == nil {
		sets[capability/32].Effective &^= 1 << (capability % 32)
		err = unix.Capset(&header, &sets[0])
	}
	if err == nil {
		fn()
	}
	done <- err
}
