package fdstore

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is one that Hold watches: a child of its own, or one that has taken over from that.
type process struct {
	pid   int
	ended chan int // has the exit status, once
	fd    int      // a pidfd of one that is no child; -1 for a child, which has child
	child *os.Process
	quit  context.CancelFunc
	done  sync.WaitGroup
}

// begin starts the command with what is held.
func (h *holder) begin() (*process, error) {
	cmd := exec.Command(h.Command[0], h.Command[1:]...)
	cmd.Dir = h.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// A terminal's signals are for Hold, which passes them on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var names []string
	var fds []int
	for i, f := range h.held {
		cmd.ExtraFiles = append(cmd.ExtraFiles, f.file)
		names, fds = append(names, f.name), append(fds, firstFD+i)
	}
	cmd.Env = slices.DeleteFunc(without(slices.Clone(h.Env)), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == envManager || strings.HasPrefix(name, "WATCHDOG_") // those of Hold's own manager
	})
	cmd.Env = append(cmd.Env, envManager+"="+h.inbox.name, fmt.Sprintf("FDSTORE=%d", mostHeld))
	cmd.Env = append(cmd.Env, environment(names, fds)...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{pid: cmd.Process.Pid, ended: make(chan int, 1), fd: -1, child: cmd.Process, quit: func() {}}
	p.done.Go(func() {
		_ = cmd.Wait() // the state has it
		p.ended <- exitStatus(cmd.ProcessState)
	})
	return p, nil
}

// watchTick is how often the end of a process that is no child is looked for besides.
const watchTick = time.Second

// watch returns a process that is no child.
func watch(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	ctx, quit := context.WithCancel(context.Background())
	p := &process{pid: pid, ended: make(chan int, 1), fd: fd, quit: quit}
	p.done.Go(func() {
		for ctx.Err() == nil {
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(watchTick.Milliseconds())); n > 0 && err == nil {
				p.ended <- 0 // its parent knows the status: what it has left in the store says whether it has stopped
				return
			}
		}
	})
	return p, nil
}

func (p *process) signal(s unix.Signal) {
	if p.child != nil {
		_ = p.child.Signal(s) // it may have ended
		return
	}
	_ = unix.PidfdSendSignal(p.fd, s, nil, 0) // likewise
}

// close lets go of a process that has ended, or is stuck.
func (p *process) close() {
	p.quit()
	if p.fd >= 0 {
		p.done.Wait()
		unix.Close(p.fd)
	}
}
