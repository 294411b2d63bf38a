package fdstore

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exec replaces the program of this process. What is kept, by Has or Keep, goes on to it, for Inherit. It returns only if that fails;
// then nothing has changed. All threads must be able to end: one that is stuck in a call to a dead disk hangs it, and the process with it.
func (s *Store) Exec(program string, args []string) error {
	if s == nil {
		return errors.New("execute: nothing can be passed on")
	}
	s.mu.Lock()
	all := maps.Clone(s.kept)
	s.mu.Unlock()
	return execute(program, args, all)
}

// ExecWith is Exec for a program that does not go on where this one is: it gets one more descriptor, and none of those of Pass.
func (s *Store) ExecWith(name string, c syscall.Conn, program string, args []string) error {
	s.mu.Lock()
	all := maps.Clone(s.kept)
	s.mu.Unlock()
	maps.DeleteFunc(all, func(_ string, k kept) bool { return k.own })
	all[name] = kept{conn: c}
	return execute(program, args, all)
}

func execute(program string, args []string, all map[string]kept) error {
	names, fds, err := numbersOf(all)
	if err != nil {
		return err
	}
	// Nobody forks while descriptors can be inherited.
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	passed := func(flag int) error {
		for _, fd := range fds {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flag); err != nil {
				return err
			}
		}
		return nil
	}
	if err := passed(0); err != nil {
		_ = passed(unix.FD_CLOEXEC) // err is the first error
		return err
	}
	env := append(without(os.Environ()), environment(names, fds)...)
	err = syscall.Exec(program, args, env)
	_ = passed(unix.FD_CLOEXEC) // a child could inherit them, no more
	return fmt.Errorf("execute %s: %w", program, err)
}

// numbersOf returns the names of descriptors, and the numbers.
func numbersOf(all map[string]kept) (names []string, fds []int, err error) {
	for name, k := range all {
		if err := within(k.conn, func(fd int) error {
			names, fds = append(names, name), append(fds, fd)
			return nil
		}); err != nil {
			return nil, nil, fmt.Errorf("pass on %s: %w", name, err)
		}
	}
	return names, fds, nil
}

// environment returns the variables that tell a process what it inherits. It has no LISTEN_PID: who is to start a process does not
// know its number.
func environment(names []string, fds []int) (env []string) {
	if len(fds) == 0 {
		return nil
	}
	env = []string{envFDs + "=" + strconv.Itoa(len(fds)), envNames + "=" + strings.Join(names, ":")}
	var at []string
	for i, fd := range fds {
		if fd != firstFD+i {
			at = nil
			for _, fd := range fds {
				at = append(at, strconv.Itoa(fd))
			}
			break
		}
	}
	if at != nil {
		env = append(env, envAt+"="+strings.Join(at, ","))
	}
	return env
}

// without returns an environment without the variables of this package that describe descriptors.
func without(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{envFDs, envNames, envPID, envAt}, name)
	})
}

// Program returns the file of this process's program as it is now: after an upgrade, the new one.
func Program() (string, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", err
	}
	self = strings.TrimSuffix(self, " (deleted)") // a package manager has put the new one beside it and renamed it
	if !filepath.IsAbs(self) {
		return "", fmt.Errorf("the program of this process has no path: %s", self)
	}
	return self, nil
}
