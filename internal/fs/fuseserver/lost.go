package fuseserver

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookInterval bounds how often the mounts of a host are read on which they change all
	// the time.
	lookInterval = time.Second
	// endGrace is how long the connection may live on after a plain umount.
	endGrace = time.Second
)

// Lost returns a channel that gets one error if the mount ends though Unmount was not called:
// it was unmounted, or detached, or its connection was aborted. Unmount then removes what is
// left.
func (m *Mount) Lost() <-chan error { return m.lost }

func (m *Mount) lose(why error) {
	if m.ending.Load() {
		return
	}
	select {
	case m.lost <- fmt.Errorf("mount %s: %w", m.point, why):
	default: // known already
	}
}

// whyEnded says why the connection has ended.
func (m *Mount) whyEnded() error {
	switch at, err := m.look(); {
	case err != nil:
		return fmt.Errorf("its connection has ended; whether it is still mounted cannot be seen: %w", err)
	case at.gone, !Dead(at.path): // what is there has only its numbers
		return errors.New("another process unmounted it, as umount and fusermount3 -u do")
	}
	return fmt.Errorf("another process aborted its connection, as umount -f and /sys/fs/fuse/connections/%d/abort do", m.minor)
}

// whereabouts says where a mount is now.
type whereabouts struct {
	gone bool        // it is nowhere in this mount namespace
	path string      // of its mount point
	over *mountpoint // what covers it; nil: nothing
}

// look says where this mount is. Its numbers are its own for as long as its connection lives; after that, what it finds may be another
// mount, unless that is dead.
// It opens nothing on the mount: for that moment, an umount would fail. An error says that it
// could not look, as for want of descriptors.
func (m *Mount) look() (whereabouts, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return whereabouts{}, err
	}
	return m.lookIn(string(info)), nil
}

func (m *Mount) lookIn(info string) whereabouts {
	at := whereabouts{gone: true}
	var within []mountpoint // what is mounted on directories of this mount
	for line := range strings.Lines(info) {
		switch mp, ok := parseMount(line); {
		case !ok:
		case mp.id == m.id && mp.minor == m.minor:
			at = whereabouts{path: mp.path}
		case mp.parent == m.id:
			within = append(within, mp)
		}
	}
	if i := slices.IndexFunc(within, func(mp mountpoint) bool { return mp.path == at.path }); i >= 0 {
		at.over = &within[i]
	}
	return at
}

// covered says that another mount covers this one.
func (m *Mount) covered(by *mountpoint) error {
	return fmt.Errorf("%s (%s) is mounted over it: unmount that, and then this one with 'umount -l %s'", by.source, by.fsType, m.point)
}

// watch has notice called whenever mounts of this namespace have changed, until stop is
// called.
func (m *Mount) watch() (stop func()) {
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return func() {}
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(table)
		return func() {}
	}
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		seen := 0
		for m.notice(&seen, stopped) {
			for {
				_, err := unix.Poll([]unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}, -1)
				if !errors.Is(err, unix.EINTR) {
					break
				}
			}
		}
	}()
	return func() {
		close(stopped)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // of an empty counter: it does not fail
		<-ended
		unix.Close(table)
		unix.Close(wake)
	}
}

// notice looks whether the mount is still there and to be seen, again and again until it can. seen
// is the number of the mount over it that was reported last. It reports whether there is more to watch.
func (m *Mount) notice(seen *int, stopped <-chan struct{}) bool {
	at, err := m.look()
	for said := false; err != nil; at, err = m.look() {
		if !said {
			said = true
			m.fs.log.Warn("cannot see whether the mount is still there; looking again", "mount", m.point, "err", err)
		}
		select {
		case <-stopped:
			return false
		case <-time.After(lookInterval):
		}
	}
	switch {
	case at.gone:
		select {
		case <-stopped: // the connection ended with it
		case <-time.After(endGrace):
			m.lose(errors.New("another process detached it, as umount -l does, while clients used it"))
		}
		return false
	case at.over == nil:
		*seen = 0
	case at.over.id != *seen:
		*seen = at.over.id
		m.fs.log.Warn("something was mounted over the mount: clients do not see it any more; unmount that",
			"mount", at.path, "source", at.over.source, "type", at.over.fsType)
	}
	select {
	case <-stopped:
		return false
	case <-time.After(lookInterval):
		return true
	}
}
