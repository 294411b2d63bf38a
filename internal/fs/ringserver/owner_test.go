package ringserver

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// sleepers starts n processes that run until the test ends.
func sleepers(t *testing.T, n int) (pids []uint32) {
	t.Helper()
	for range n {
		cmd := exec.Command("sleep", "600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		pids = append(pids, uint32(cmd.Process.Pid))
	}
	return pids
}

// The daemon watches a bounded number of one user's processes. Others' are watched still,
// and a process that is not needed any more makes room.
func TestProcessesOfOneUser(t *testing.T) {
	o, err := newOwners(func(*entry) {}, nil, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	pids := sleepers(t, 4)
	var handles []uint64
	for i, want := range []error{nil, nil, syscall.EMFILE} {
		h, err := o.dirOpened(77, pids[i])
		if err != want {
			t.Errorf("process %d: %v, want %v", i+1, err, want)
		}
		handles = append(handles, h)
	}
	e := &entry{}
	if _, err := o.join(77, pids[2], e); err != syscall.EMFILE {
		t.Errorf("a registration of the third process: %v, want EMFILE", err)
	}
	second, err := o.dirOpened(77, pids[0])
	if err != nil {
		t.Errorf("a second handle of the first process: %v", err)
	}
	other, err := o.dirOpened(78, pids[3])
	if err != nil {
		t.Errorf("another user: %v", err)
	}
	o.dirReleased(handles[1])
	if e.owner, err = o.join(77, pids[2], e); err != nil {
		t.Errorf("a registration after another process is forgotten: %v", err)
	}
	o.leave(e)
	o.dirReleased(handles[0])
	o.dirReleased(handles[0]) // twice is as good as once
	o.dirReleased(handles[0] + 100)
	o.dirReleased(other)
	if n := o.processes.Total(); n != 1 { // with its second handle
		t.Errorf("%d processes count as watched, want 1", n)
	}
	o.dirReleased(second)
	if n := o.processes.Total(); n != 0 {
		t.Errorf("%d processes count as watched, want none", n)
	}
}

func TestHandlesOfOneUser(t *testing.T) {
	s, _ := serve(t, Options{})
	c := cred.Caller{UID: 12345, GID: 12345, PID: me.PID}
	var handles []uint64
	for {
		h, err := s.DirOpened(c)
		if err != nil {
			if err != syscall.EMFILE {
				t.Error(err)
			}
			break
		}
		handles = append(handles, h)
		if len(handles) > mostHandles {
			t.Fatal("handles have no bound")
		}
	}
	if len(handles) != mostHandles/4 {
		t.Errorf("one user has %d handles, want %d", len(handles), mostHandles/4)
	}
	other, err := s.DirOpened(me)
	if err != nil {
		t.Errorf("another user: %v", err)
	}
	for _, h := range append(handles, other) {
		s.DirReleased(h)
	}
	if n := s.owners.opened.Total(); n != 0 {
		t.Errorf("%d handles count as open", n)
	}
}

// What is remembered of a process's threads is bounded, and a thread that was forgotten is
// found again.
func TestThreadsOfOneProcess(t *testing.T) {
	o, err := newOwners(func(*entry) {}, nil, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	keep, err := o.dirOpened(0, uint32(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	end := make(chan struct{})
	defer close(end)
	for range mostThreads + 10 {
		tid := make(chan int)
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			tid <- unix.Gettid()
			<-end
		})
		e := &entry{}
		if e.owner, err = o.join(0, uint32(<-tid), e); err != nil {
			t.Fatal(err)
		}
		o.leave(e)
	}
	if n := len(o.threads); n > mostThreads {
		t.Errorf("%d threads of one process are remembered, want at most %d", n, mostThreads)
	}
	w, err := o.find(0, os.Getpid())
	if err != nil || w == nil || w.tgid != os.Getpid() {
		t.Errorf("the first thread is of %+v, %v", w, err)
	}
	o.dirReleased(keep)
}

// kill ends a process of sleepers.
func kill(t *testing.T, pid uint32) {
	t.Helper()
	if err := unix.Kill(int(pid), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
