package fdstore

import (
	"crypto/rand"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// inbox receives what a process tells.
type inbox struct {
	name     string
	at       *net.UnixConn
	messages chan received
	ended    chan struct{}
	done     sync.WaitGroup
}

// received is a message with its descriptors, which are the receiver's.
type received struct {
	message
	files []*os.File
}

// listenNotify makes a socket that only processes of this user are heard at. It is in no directory: a name there could be left behind.
func listenNotify() (*inbox, error) {
	name := "@kv3fs-hold-" + rand.Text()
	at, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	if err := within(at, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1) }); err != nil {
		_ = at.Close() // err is the first error
		return nil, err
	}
	in := &inbox{name: name, at: at, messages: make(chan received), ended: make(chan struct{})}
	in.done.Go(in.listen)
	return in, nil
}

// listen passes on messages until close.
func (in *inbox) listen() {
	for {
		m, err := in.next()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // a message that nobody can read
		}
		select {
		case in.messages <- m:
		case <-in.ended:
			m.drop()
			return
		}
	}
}

// next waits for a message of this user.
func (in *inbox) next() (received, error) {
	text, oob := make([]byte, 4096), make([]byte, 4096)
	n, used, _, _, err := in.at.ReadMsgUnix(text, oob)
	if err != nil {
		return received{}, err
	}
	m, from := received{message: parse(string(text[:n]))}, -1
	controls, err := unix.ParseSocketControlMessage(oob[:used])
	if err != nil {
		return received{}, err
	}
	for _, c := range controls {
		if fds, err := unix.ParseUnixRights(&c); err == nil {
			for _, fd := range fds {
				m.files = append(m.files, os.NewFile(uintptr(fd), m.name))
			}
		}
		if cred, err := unix.ParseUnixCredentials(&c); err == nil {
			from = int(cred.Uid)
		}
	}
	if from != os.Geteuid() && from != 0 {
		m.drop()
		return received{}, errors.New("a message of another user")
	}
	return m, nil
}

// rest returns the messages that were sent before now. It sends one itself and waits for that: they come in their order.
func (in *inbox) rest() (all []received) {
	mark := rand.Text()
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() { _ = (&Store{manager: in.name}).tell(tagMark+"="+mark, nil) }) // without it, the time below ends the wait
	for limit := time.After(managerTime); ; {
		select {
		case m := <-in.messages:
			if m.mark == mark {
				return all
			}
			all = append(all, m)
		case <-limit:
			return all
		}
	}
}

func (m received) drop() {
	for _, f := range m.files {
		f.Close()
	}
}

func (in *inbox) close() {
	close(in.ended)
	_ = in.at.Close() // nothing is left to be read
	in.done.Wait()
}

// tellOwnManager passes on what a process has said about itself, where Hold itself has a manager.
func tellOwnManager(lines []string) {
	manager := os.Getenv(envManager)
	if manager == "" || len(lines) == 0 {
		return
	}
	_ = (&Store{manager: manager}).tell(strings.Join(lines, "\n"), nil) // as a service that runs without one
}
