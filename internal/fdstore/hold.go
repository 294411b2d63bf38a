package fdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options are the options of Hold.
type Options struct {
	// Command is the program and its arguments; Env its environment, without what this package adds; Dir its working directory.
	Command []string
	Env     []string
	Dir     string
	// Patience is how long there may be no process that is ready, after there was one. What uses the descriptors waits that long.
	Patience time.Duration
	// Inherited is what Hold has inherited itself, for the first process; nil: nothing.
	Inherited *Store
	// End aborts the connection of a FUSE device, unless it has ended already, and removes its mount.
	End func(of Connection, device *os.File)
	// Signals are passed on to the process. They do not stop Hold.
	Signals <-chan os.Signal
	// Again receives a value for each further request to stop: Hold then ends at once.
	Again <-chan struct{}
	// Children receives a value when a child has ended. As process 1 of a container, Hold reaps those that others have left to it; nil: it
	// does not.
	Children <-chan os.Signal
	Log      *slog.Logger
}

// How long Hold waits before it starts a process again: it doubles with each that was never ready.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
	// killTime is how long a process that was killed may take to end before that is no longer waited for: it may be stuck in a call.
	killTime = 2 * time.Second
)

// Exit statuses of a process that says by them that it shall not be started again.
const (
	statusUsage  = 2
	statusCutOff = 3
)

// ErrGaveUp says that no process became ready in time. What was held is gone, and whoever used it gets errors.
var ErrGaveUp = errors.New("gave up")

// Hold runs a command, keeps the descriptors that it stores, and starts it again with these whenever it has ended without being asked
// to. It returns the exit status of the process
//
//   - that ended, with what it has stored removed, or with status 2 (its configuration is wrong) or 3 (it has stopped and cut clients off),
//   - that was never ready, if none was before,
//   - that was stopped, by a SIGTERM, after ctx has ended.
//
// The error is ErrGaveUp, or that of a command that cannot be started. However Hold ends, nothing of what it has kept is left: it aborts
// the connections that a stuck process could hold open, so that nobody waits for a daemon that does not come.
//
// The caller must have nothing open on a mount whose device is kept, nor its working directory there: closing it would wait for the
// process that Hold is to start.
func Hold(ctx context.Context, o Options) (status int, err error) {
	h := &holder{Options: o, pause: firstPause}
	for _, n := range o.Inherited.takeRest() {
		h.held = append(h.held, heldFD{named: n})
	}
	if h.inbox, err = listenNotify(); err != nil {
		return 0, err
	}
	defer h.inbox.close()
	defer h.giveUp()
	return h.run(ctx)
}

type holder struct {
	Options
	inbox *inbox
	held  []heldFD

	now       *process // nil: there is none
	successor int      // the process that has said it is the main one, if it is another
	wasReady  bool     // some process was
	ready     bool     // the present one is
	pause     time.Duration
	stopping  bool
}

// heldFD is a descriptor that a process has stored.
type heldFD struct {
	named
	of Connection
}

func (h *holder) run(ctx context.Context) (status int, err error) {
	if err := h.start(); err != nil {
		return 0, err
	}
	h.reap() // those that ended before anybody listened
	stop := ctx.Done()
	patience := time.NewTimer(0)
	defer patience.Stop()
	<-patience.C
	restart := time.NewTimer(0)
	defer restart.Stop()
	<-restart.C
	for {
		var ended <-chan int
		if h.now != nil {
			ended = h.now.ended
		}
		select {
		case m := <-h.inbox.messages:
			h.took(m)
			if h.ready {
				patience.Stop()
			}
		case status := <-ended:
			h.drain()
			h.now.close()
			h.now = nil
			h.reap()
			if h.follow() {
				continue
			}
			if h.over(status) {
				return status, nil
			}
			if h.ready {
				h.ready = false
				patience.Reset(h.Patience)
			}
			h.Log.Warn("the process has ended; it is started again, and who uses its mount waits", "exit", status, "in", h.pause, "kept", len(h.held))
			restart.Reset(h.pause)
			h.pause = min(2*h.pause, mostPause)
		case <-restart.C:
			if err := h.start(); err != nil {
				h.Log.Error("the process cannot be started", "err", err, "again_in", h.pause)
				restart.Reset(h.pause)
				h.pause = min(2*h.pause, mostPause)
			}
		case <-patience.C:
			h.kill()
			return 0, fmt.Errorf("%w: no process was ready for %v: what it served is gone, and calls that waited for it fail; look at its log, and start it again", ErrGaveUp, h.Patience)
		case s := <-h.Signals:
			if n, ok := s.(unix.Signal); ok && h.now != nil {
				h.now.signal(n)
			}
		case <-h.Children:
			h.reap()
		case <-stop:
			stop = nil
			h.stopping = true
			patience.Stop()
			restart.Stop()
			if h.now == nil {
				return 0, nil
			}
			h.now.signal(unix.SIGTERM)
		case <-h.Again:
			h.kill()
			return 128 + int(unix.SIGKILL), nil
		}
	}
}

// start starts the process with what is held.
func (h *holder) start() error {
	h.dropDead()
	p, err := h.begin()
	if err != nil {
		return err
	}
	h.now = p
	return nil
}

// over reports whether the end of a process is that of Hold.
func (h *holder) over(status int) bool {
	switch {
	case h.stopping, !h.wasReady, status == statusUsage, status == statusCutOff:
		return true
	}
	return status == 0 && len(h.held) == 0 // a stop in order removes what it has stored; a handover does not
}

// follow watches the process that the one before has named as its successor, and reports whether there is one.
func (h *holder) follow() bool {
	pid := h.successor
	h.successor = 0
	if pid == 0 {
		return false
	}
	p, err := watch(pid)
	if err != nil {
		h.Log.Warn("the process that was to take over has ended", "pid", pid, "err", err)
		return false
	}
	h.Log.Info("another process has taken over", "pid", pid)
	h.now = p
	if h.stopping {
		p.signal(unix.SIGTERM)
	}
	return true
}

// drain takes the messages that the process sent before it ended.
func (h *holder) drain() {
	for _, m := range h.inbox.rest() {
		h.took(m)
	}
}

// took does what a message asks for.
func (h *holder) took(m received) {
	switch {
	case m.store && m.name != "":
		for _, f := range m.files {
			h.keep(heldFD{named{m.name, f}, m.of})
		}
		m.files = nil
	case m.remove:
		h.forget(m.name)
	}
	for _, f := range m.files { // of a barrier, which this answers
		f.Close()
	}
	if m.main != 0 && (h.now == nil || m.main != h.now.pid) {
		h.successor = m.main
	}
	if m.ready {
		h.ready, h.wasReady, h.pause = true, true, firstPause
	}
	tellOwnManager(m.rest)
}

// mostHeld bounds what a process can have kept.
const mostHeld = 1024

func (h *holder) keep(f heldFD) {
	if len(h.held) == mostHeld {
		h.Log.Error("too many descriptors are kept", "name", f.name, "most", mostHeld)
		f.file.Close()
		return
	}
	for _, other := range h.held {
		if sameFile(other.file, f.file) {
			f.file.Close()
			return
		}
	}
	h.held = append(h.held, f)
}

// forget closes what is held under a name.
func (h *holder) forget(name string) { h.release(func(f heldFD) bool { return f.name == name }) }

// dropDead closes what no process can use any more: the device of a connection that was ended.
func (h *holder) dropDead() {
	h.release(heldFD.dead)
}

// dead reports whether nobody can use a descriptor any more.
func (f heldFD) dead() bool {
	poll := []unix.PollFd{{Fd: int32(f.file.Fd())}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0 && poll[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
}

func (h *holder) release(which func(heldFD) bool) {
	kept := h.held[:0]
	for _, f := range h.held {
		if which(f) {
			f.file.Close()
		} else {
			kept = append(kept, f)
		}
	}
	h.held = kept
}

// kill ends the process as far as the kernel allows.
func (h *holder) kill() {
	if h.now == nil {
		return
	}
	h.now.signal(unix.SIGKILL)
	select {
	case <-h.now.ended:
	case <-time.After(killTime):
		h.Log.Error("the process does not end, although it was killed: it is stuck in a call, perhaps of a disk", "pid", h.now.pid)
	}
	h.now.close()
	h.now = nil
}

// giveUp lets nobody wait for what is not served any more. Closing the last descriptor of a connection ends it, too; but a process that
// is stuck has one more.
func (h *holder) giveUp() {
	for _, f := range h.held {
		if f.of.Minor != 0 && h.End != nil {
			h.End(f.of, f.file)
		}
		f.file.Close()
	}
	h.held = nil
}

// sameFile reports whether two descriptors are of one file and, as far as can be told, of one opening.
func sameFile(a, b *os.File) bool {
	const same = 0 // KCMP_FILE
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(os.Getpid()), same, a.Fd(), b.Fd(), 0)
	return errno == 0 && r == 0
}

// exitStatus is what a shell would say of a process's end.
func exitStatus(state *os.ProcessState) int {
	if state == nil {
		return 1
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return max(state.ExitCode(), 0)
}
