package cred

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Caller is the client of a request: its file-system uid and gid, and the id of its
// process or thread. Supplementary groups are read by that id when they matter; a caller
// with PID 0 (in another PID namespace) or whose process has exited has none. See
// WithGroups.
type Caller struct {
	UID, GID, PID uint32
	// groups are the supplementary groups, once they are known for good.
	groups *[]int
}

// Root reports whether the caller is the super-user, which may do anything.
func (c Caller) Root() bool { return c.UID == 0 }

// RunAs runs fn with the rights of c and no capability at all, so that the
// kernel decides what c may do. A daemon without privileges has only its own identity:
// EPERM for other users, the super-user included. RunAs may be called concurrently.
//
// fn runs once, on another goroutine, locked to its thread, and RunAs waits for
// it. fn must not start goroutines that it expects to have the identity. Its
// error is returned as it is.
func RunAs(c Caller, fn func() error) error {
	switch {
	case !privileged() && int(c.UID) != os.Geteuid():
		return unix.EPERM
	case !privileged() || c.Root():
		return fn()
	}
	return onThread(c, supplementary(c), dropCapabilities, fn)
}

// CreateAs runs fn so that what it creates belongs to c, with the daemon's capabilities in
// force: rights have been checked already by the kernel's default_permissions, which
// knows all of c's groups. It may be called concurrently; fn runs once, on another
// goroutine locked to its thread.
func CreateAs(c Caller, fn func() error) error {
	if !privileged() || c.UID == 0 && c.GID == 0 {
		return fn()
	}
	return onThread(c, nil, keepCapabilities, fn)
}

// Privileged reports whether this process can take the identity of other users.
func Privileged() bool { return privileged() }

type capabilityRule bool

const (
	dropCapabilities capabilityRule = false
	keepCapabilities capabilityRule = true
)

// identity is what the daemon's threads have, and what leave restores.
type identity struct {
	uid, gid int
	groups   []int
	caps     capabilities
}

var privileged = sync.OnceValue(func() bool { return os.Geteuid() == 0 })

var daemon = sync.OnceValues(func() (id identity, err error) {
	id.uid, id.gid = os.Geteuid(), os.Getegid()
	if id.groups, err = unix.Getgroups(); err != nil {
		return id, fmt.Errorf("groups of this process: %w", err)
	}
	if id.caps, err = loadCapabilities(); err != nil {
		return id, fmt.Errorf("capabilities of this process: %w", err)
	}
	return id, nil
})

// Ready returns an error if this process cannot read its own identity, which it must
// restore after it has taken another. The daemon calls it before it serves.
func Ready() error {
	_, err := daemon()
	return err
}

// onThread runs fn on a goroutine of its own. If the thread's identity cannot be
// restored, the goroutine ends without unlocking the thread, and the runtime destroys
// it: no other goroutine ever runs with the client's rights.
func onThread(c Caller, groups []int, rule capabilityRule, fn func() error) error {
	home, err := daemon()
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		clean := false
		result := error(unix.EIO)
		defer func() {
			if clean {
				runtime.UnlockOSThread()
			}
			done <- result
		}()
		if err := enter(c, groups, rule, home); err != nil {
			result = err
			clean = leave(rule, home) == nil
			return
		}
		result = fn()
		clean = leave(rule, home) == nil
	}()
	return <-done
}

func enter(c Caller, groups []int, rule capabilityRule, home identity) error {
	if rule == dropCapabilities {
		// unix.Setgroups changes this thread only, syscall.Setgroups all of them.
		if err := unix.Setgroups(groups); err != nil {
			return fmt.Errorf("cred: set groups: %w", err)
		}
	}
	// setfsgid and setfsuid report the previous value, never an error.
	setFS(unix.SYS_SETFSGID, int(c.GID))
	setFS(unix.SYS_SETFSUID, int(c.UID))
	if setFS(unix.SYS_SETFSUID, -1) != int(c.UID) || setFS(unix.SYS_SETFSGID, -1) != int(c.GID) {
		return fmt.Errorf("cred: become %d:%d: %w", c.UID, c.GID, unix.EPERM)
	}
	caps := home.caps
	if rule == dropCapabilities {
		caps = caps.withoutEffective()
	}
	// Setting a file-system uid other than 0 removed the file capabilities from the
	// effective set; the permitted set still has them.
	return storeCapabilities(caps)
}

func leave(rule capabilityRule, home identity) error {
	// The effective uid stayed the daemon's, so going back needs no capability.
	setFS(unix.SYS_SETFSUID, home.uid)
	setFS(unix.SYS_SETFSGID, home.gid)
	if setFS(unix.SYS_SETFSUID, -1) != home.uid || setFS(unix.SYS_SETFSGID, -1) != home.gid {
		return unix.EPERM
	}
	if err := storeCapabilities(home.caps); err != nil {
		return err
	}
	if rule == dropCapabilities {
		return unix.Setgroups(home.groups)
	}
	return nil
}

func setFS(call uintptr, id int) int {
	old, _, _ := syscall.RawSyscall(call, uintptr(id), 0, 0)
	return int(uint32(old))
}
