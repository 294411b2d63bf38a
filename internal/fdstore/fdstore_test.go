package fdstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

// envRole makes this test binary another process of a test.
const envRole = "KV3FS_FDSTORE_ROLE"

// patient is how long anything may take on a busy machine.
const patient = time.Minute

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		os.Exit(play(role))
	}
	os.Exit(leaktest.Main(m))
}

// play is a process of a test. Its working directory is the test's own; it listens at the socket "s" there.
func play(role string) int {
	s, err := Inherit()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	l, inherited, err := listener(s)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	ready := func() {
		if err := s.tell("READY=1", nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	switch role {
	case "serve": // until it is told to end
	case "keep-and-end": // the second one fails, as every other after it
		if inherited {
			return 1
		}
		ready()
		return 7
	case "never-ready":
		return 5
	case "wrong":
		if !inherited {
			ready()
			return 1
		}
		return statusUsage
	case "remove-and-end":
		ready()
		if err := s.Remove(Pages); err != nil {
			return 9
		}
		return 0
	case "hand-over": // leaves a successor behind, once
		if inherited {
			break
		}
		next := exec.Command(os.Args[0])
		next.Env = append(os.Environ(), envRole+"=serve", envFDs+"=1", envNames+"="+Pages)
		file, err := l.(*net.UnixListener).File()
		if err != nil {
			return 9
		}
		next.ExtraFiles = []*os.File{file}
		if err := next.Start(); err != nil {
			return 9
		}
		ready()
		if err := s.tell("MAINPID="+strconv.Itoa(next.Process.Pid), nil); err != nil {
			return 9
		}
		return 0
	case "exec":
		os.Setenv(envRole, "serve")
		if err := s.Exec("/does/not/exist", os.Args); !errors.Is(err, unix.ENOENT) {
			fmt.Fprintln(os.Stderr, "exec of nothing:", err)
			return 9
		}
		self, err := Program()
		if err == nil {
			err = s.Exec(self, os.Args)
		}
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGHUP)
	ready()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, os.Getpid(), inherited)
			c.Close()
		}
	}()
	if s := <-term; s == syscall.SIGHUP {
		return 0 // with what it has stored
	}
	if err := s.Remove(Pages); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	return 0
}

func listener(s *Store) (l net.Listener, inherited bool, err error) {
	if f := s.Take(Pages); f != nil {
		defer f.Close()
		if l, err = net.FileListener(f); err != nil {
			return nil, false, err
		}
		s.Has(Pages, l.(*net.UnixListener), Connection{})
		return l, true, nil
	}
	made, err := net.ListenUnix("unix", &net.UnixAddr{Name: "s", Net: "unix"})
	if err != nil {
		return nil, false, err
	}
	made.SetUnlinkOnClose(false)
	return made, false, s.Keep(Pages, made, Connection{77, "/a b\nc"})
}

// held runs Hold with a role.
type held struct {
	dir     string
	asked   bool
	aborted []Connection
	stop    context.CancelFunc
	again   chan struct{}
	signals chan os.Signal
	done    chan struct{}
	status  int
	err     error
}

func hold(t *testing.T, role string, patience time.Duration) *held {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	h := &held{dir: t.TempDir(), stop: stop, again: make(chan struct{}, 1), signals: make(chan os.Signal, 1), done: make(chan struct{})}
	go func() {
		defer close(h.done)
		h.status, h.err = Hold(ctx, Options{
			Command: []string{os.Args[0]}, Env: append(os.Environ(), envRole+"="+role), Dir: h.dir, Patience: patience,
			End:     func(of Connection, _ *os.File) { h.aborted = append(h.aborted, of) },
			Signals: h.signals, Again: h.again, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
	}()
	t.Cleanup(func() {
		stop()
		h.wait(t)
	})
	return h
}

func (h *held) wait(t *testing.T) {
	t.Helper()
	select {
	case <-h.done:
	case <-time.After(patient):
		t.Fatal("Hold does not end")
	}
}

// ask returns which process answers, and whether it has inherited its socket. Only the first call waits for a process that listens.
func (h *held) ask(t *testing.T) (pid int, inherited bool) {
	t.Helper()
	var c net.Conn
	var err error
	for end := time.Now().Add(patient); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if c, err = net.Dial("unix", filepath.Join(h.dir, "s")); err == nil || h.asked { // the socket is made first, and listens later
			break
		}
	}
	if err != nil {
		t.Fatalf("a client was refused: %v", err)
	}
	defer c.Close()
	h.asked = true
	if err := c.SetReadDeadline(time.Now().Add(patient)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatalf("a client got no answer: %v", err)
	}
	if _, err := fmt.Sscan(line, &pid, &inherited); err != nil {
		t.Fatal(err)
	}
	return pid, inherited
}

// kill ends a process, and returns when it is gone.
func kill(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, pid)
}

func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(patient); syscall.Kill(pid, 0) == nil && !zombie(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d does not end", pid)
		}
	}
}

// zombie reports whether a process has ended and its parent has not noticed.
func zombie(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := strings.LastIndexByte(string(stat), ')')
	return i < 0 || strings.HasPrefix(string(stat[i+1:]), " Z")
}

// A client that connects while there is no process waits for the next one, which has the same socket.
func TestHoldKeepsDescriptorsOverAKill(t *testing.T) {
	h := hold(t, "serve", patient)
	before, inherited := h.ask(t)
	if inherited {
		t.Error("the first process says that it inherited its socket")
	}
	for range 5 {
		kill(t, before, syscall.SIGKILL)
		if before, inherited = h.ask(t); !inherited {
			t.Error("the successor did not inherit the socket")
		}
	}
	h.stop()
	h.wait(t)
	if h.status != 0 || h.err != nil || len(h.aborted) != 0 {
		t.Errorf("Hold ended with %d, %v, aborted %v", h.status, h.err, h.aborted)
	}
	if _, err := net.Dial("unix", filepath.Join(h.dir, "s")); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after the end somebody still holds the socket: %v", err)
	}
}

// A process that ends with status 0 and leaves what it has stored is followed by another one.
func TestHoldFollowsAHandover(t *testing.T) {
	h := hold(t, "serve", patient)
	before, _ := h.ask(t)
	h.signals <- unix.SIGHUP
	awaitEnd(t, before)
	if _, inherited := h.ask(t); !inherited {
		t.Error("the successor did not inherit the socket")
	}
}

// What a process names as its successor is watched like a child: it is stopped, and followed when it is killed.
func TestHoldWatchesWhoTakesOver(t *testing.T) {
	h := hold(t, "hand-over", patient)
	successor, inherited := h.ask(t)
	if !inherited {
		t.Error("the successor did not inherit the socket")
	}
	kill(t, successor, syscall.SIGKILL)
	if next, inherited := h.ask(t); next == successor || !inherited {
		t.Errorf("process %d answers after %d was killed, inherited: %v", next, successor, inherited)
	}
	h.stop()
	h.wait(t)
	if h.status != 0 || h.err != nil {
		t.Errorf("Hold ended with %d, %v", h.status, h.err)
	}
}

// Where no process becomes ready any more, nobody waits for ever: the descriptors are closed and the connection is aborted.
func TestHoldGivesUp(t *testing.T) {
	h := hold(t, "keep-and-end", 500*time.Millisecond)
	h.wait(t)
	if !errors.Is(h.err, ErrGaveUp) {
		t.Errorf("Hold ended with %d, %v", h.status, h.err)
	}
	if !slices.Equal(h.aborted, []Connection{{77, "/a b\nc"}}) {
		t.Errorf("aborted %v", h.aborted)
	}
	if _, err := net.Dial("unix", filepath.Join(h.dir, "s")); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after the end somebody still holds the socket: %v", err)
	}
}

func TestHoldEndsWithItsProcess(t *testing.T) {
	for role, want := range map[string]struct {
		status  int
		aborted bool
	}{
		"never-ready":    {5, true}, // it has stored its socket, though
		"wrong":          {statusUsage, true},
		"remove-and-end": {0, false},
	} {
		t.Run(role, func(t *testing.T) {
			h := hold(t, role, patient)
			h.wait(t)
			if h.err != nil || h.status != want.status || (len(h.aborted) > 0) != want.aborted {
				t.Errorf("Hold ended with %d, %v, aborted %v; want %+v", h.status, h.err, h.aborted, want)
			}
		})
	}
}

// A second request to stop ends a process that does not.
func TestHoldEndsAtOnce(t *testing.T) {
	h := hold(t, "serve", patient)
	pid, _ := h.ask(t)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h.stop()
	h.again <- struct{}{}
	h.wait(t)
	if !slices.Equal(h.aborted, []Connection{{77, "/a b\nc"}}) {
		t.Errorf("aborted %v", h.aborted)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
}

func TestHoldOfNothing(t *testing.T) {
	_, err := Hold(t.Context(), Options{Command: []string{"/does/not/exist"}, Patience: patient, Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a command that is not there: %v", err)
	}
}

// A process replaces its program and keeps its number and its socket; where that fails, it goes on.
func TestExec(t *testing.T) {
	h := &held{dir: t.TempDir()}
	cmd := exec.Command(os.Args[0])
	cmd.Dir, cmd.Stderr = h.dir, t.Output()
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, envManager+"=") }), envRole+"=exec")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid, inherited := h.ask(t)
	if pid != cmd.Process.Pid || !inherited {
		t.Errorf("process %d answers, inherited: %v; want %d, true", pid, inherited, cmd.Process.Pid)
	}
	if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
		t.Error(err)
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		count, at string
		want      []int // nil: an error
	}{
		{"0", "", []int{}}, {"2", "", []int{3, 4}}, {"2", "9,5", []int{9, 5}}, {"1", "3", []int{3}},
		{"x", "", nil}, {"-1", "", nil}, {"1000000", "", nil}, {"2", "9", nil}, {"2", "9,9", nil}, {"1", "2", nil}, {"1", "a", nil},
	} {
		got, err := numbers(c.count, c.at)
		if (err != nil) != (c.want == nil) || !slices.Equal(got, c.want) && err == nil {
			t.Errorf("numbers(%q, %q) = %v, %v; want %v", c.count, c.at, got, err, c.want)
		}
	}
}

// What says that another process has inherited something is not for this one; and no child takes it for its own.
func TestInheritForAnother(t *testing.T) {
	t.Setenv(envFDs, "1")
	t.Setenv(envPID, strconv.Itoa(os.Getpid()+1))
	s, err := Inherit()
	if err != nil {
		t.Fatal(err)
	}
	if f := s.Take(""); f != nil {
		t.Errorf("took %v", f)
	}
	if text, ok := os.LookupEnv(envFDs); ok {
		t.Errorf("%s=%s is left for children", envFDs, text)
	}
}

func TestInheritWhatIsNotThere(t *testing.T) {
	t.Setenv(envFDs, "1")
	t.Setenv(envAt, "4000000")
	if _, err := Inherit(); err == nil {
		t.Error("no error for a descriptor that is not open")
	}
}

// What nobody takes is closed.
func TestDropRest(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd, err := unix.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Setenv(envFDs, "1")
	t.Setenv(envNames, "other")
	t.Setenv(envAt, strconv.Itoa(fd))
	t.Setenv(envManager, "")
	s, err := Inherit()
	if err != nil {
		t.Fatal(err)
	}
	if s.Managed() {
		t.Error("a manager that is not there")
	}
	if dropped, err := s.DropRest("other"); err != nil || dropped != nil {
		t.Errorf("dropped %v, %v, of what is still to be taken", dropped, err)
	}
	if dropped, err := s.DropRest(); err != nil || !slices.Equal(dropped, []string{"other"}) {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the descriptor is still open: %v", err)
	}
}

// A store that is not there does nothing.
func TestNil(t *testing.T) {
	var s *Store
	s.Has(Pages, nil, Connection{})
	dropped, bad := s.DropRest()
	if err := errors.Join(s.Keep(Pages, nil, Connection{}), s.Remove(Pages), bad); err != nil || dropped != nil || s.Take(Pages) != nil || s.Managed() {
		t.Error(err)
	}
}
