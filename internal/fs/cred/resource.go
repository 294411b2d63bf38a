package cred

import (
	"fmt"
	"reflect"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// ObeyQuotas gives up, in all threads, the capability to exceed the quotas of a disk and to
// use the blocks that it keeps for the super-user (CAP_SYS_RESOURCE). Children that the
// process starts have it again. The program calls it once, before anything else of this
// package; a limit of the process (setrlimit) cannot be raised afterwards. Errors: ENOTSUP
// in a program that was linked with cgo.
func ObeyQuotas() error { return giveUp(unix.CAP_SYS_RESOURCE) }

// giveUp removes a capability from the effective set of all threads: one of the first 32,
// and none of those that come back with the file-system uid 0.
func giveUp(capability int) error {
	if !privileged() {
		return nil
	}
	caps, err := loadCapabilities()
	if err != nil {
		return fmt.Errorf("capabilities of this process: %w", err)
	}
	caps[0].Effective &^= 1 << capability
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, reflect.ValueOf(&header).Pointer(), reflect.ValueOf(&caps).Pointer(), 0)
	runtime.KeepAlive(&header)
	runtime.KeepAlive(&caps)
	if errno != 0 {
		return fmt.Errorf("give up capability %d: %w", capability, errno)
	}
	return nil
}
