package fdstore

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mostSent is how many descriptors the kernel takes in one message.
const mostSent = 253

// Send sends copies of what is kept to another process, in one message of a socket that keeps messages apart. What is there for Exec
// only, by Pass, is not sent.
func (s *Store) Send(to *net.UnixConn) error {
	s.mu.Lock()
	all := maps.Clone(s.kept)
	s.mu.Unlock()
	maps.DeleteFunc(all, func(_ string, k kept) bool { return k.own })
	names, fds, err := numbersOf(all)
	if err != nil {
		return err
	}
	if len(fds) > mostSent {
		return fmt.Errorf("%d descriptors are too many for one message", len(fds))
	}
	return send(to, strings.Join(names, ":"), unix.UnixRights(fds...))
}

// Receive takes over what Send has sent, as if it had been inherited, but that no manager of this process has it. Where a message without
// descriptors comes in its place, it returns that.
func (s *Store) Receive(from *net.UnixConn) (said string, err error) {
	const most = 16 << 10
	text, oob := make([]byte, most), make([]byte, unix.CmsgSpace(4*mostSent))
	n, used, flags, _, err := from.ReadMsgUnix(text, oob)
	if err != nil {
		return "", err
	}
	if n == 0 && used == 0 {
		return "", io.EOF
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return "", errors.New("more has come than there is room for")
	}
	controls, err := unix.ParseSocketControlMessage(oob[:used])
	if err != nil {
		return "", err
	}
	var files []*os.File
	names := strings.Split(string(text[:n]), ":")
	for _, c := range controls {
		if fds, err := unix.ParseUnixRights(&c); err == nil {
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), names[min(len(files), len(names)-1)]))
			}
		}
	}
	if len(files) == 0 {
		return string(text[:n]), nil
	}
	if len(files) != len(names) {
		for _, f := range files {
			f.Close()
		}
		return "", fmt.Errorf("%d descriptors have come for %d names", len(files), len(names))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.received == nil {
		s.received = map[string]bool{}
	}
	for i, f := range files {
		s.inherited = slices.DeleteFunc(s.inherited, func(n named) bool { return n.name == names[i] && n.file.Close() == nil }) // that of an older one
		s.inherited = append(s.inherited, named{names[i], f})
		s.received[names[i]] = true
	}
	return "", nil
}

// Retain keeps all that was inherited and that nobody has taken, for Exec.
func (s *Store) Retain() {
	for _, n := range s.takeRest() {
		s.note(n.name, n.file, Connection{})
	}
}
