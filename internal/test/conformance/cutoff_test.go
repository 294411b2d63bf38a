package conformance

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// exitStatus returns the status with which the daemon has exited.
func exitStatus(w *world) int {
	var exit *exec.ExitError
	if errors.As(w.Err(), &exit) {
		return exit.ExitCode()
	}
	return 0
}

// TestCutOffFiles checks that what clients have open when a daemon cuts them off does not go
// on behind the next daemon's back, and that the daemon says who it was.
func TestCutOffFiles(t *testing.T) {
	w := start(t, daemontest.Options{Flags: []string{"--drain", "100ms"}})
	f, err := os.Create(w.Mount + "/written")
	must(t, err)
	defer f.Close()
	_, err = f.Write(make([]byte, 12))
	must(t, err)
	r, err := os.Open(w.Mount + "/written")
	must(t, err)
	defer r.Close()
	w.signal(t, syscall.SIGTERM)
	if got := exitStatus(w); got != 3 {
		t.Errorf("exit status %d, want 3\n%s", got, w.Log())
	}
	for _, said := range []string{"cut off clients", `\"written\"`, filepath.Base(os.Args[0])[:10]} {
		if !strings.Contains(w.Log(), said) {
			t.Errorf("the log does not have %q:\n%s", said, w.Log())
		}
	}
	next := start(t, daemontest.Options{Data: w.Data, Mount: w.Mount, Flags: []string{"--drain", "100ms", "--readonly"}})
	size := func() int64 {
		t.Helper()
		fi, err := os.Stat(next.Mount + "/written")
		must(t, err)
		return fi.Size()
	}
	size() // the kernel may keep the attributes from now on
	if _, err := f.Write(make([]byte, 988)); err == nil {
		t.Error("a file that was cut off can be written")
	}
	if _, err := f.WriteAt([]byte("x"), 5); err == nil {
		t.Error("a file that was cut off can be written")
	}
	if _, err := r.ReadAt(make([]byte, 5), 0); err == nil {
		t.Error("a file that was cut off can be read")
	}
	if n := size(); n != 12 {
		t.Errorf("its size is %d, want 12", n)
	}
	if fi, err := os.Stat(next.behind(next.Mount + "/written")); err != nil || fi.Size() != 12 {
		t.Errorf("behind the mount: %v, %v", fi, err)
	}
}

// TestCutOffMappings checks that a daemon names the clients whose mappings it cannot end.
func TestCutOffMappings(t *testing.T) {
	w := start(t, daemontest.Options{Flags: []string{"--drain", "100ms"}})
	if !w.passthrough() {
		t.Skip("shared mappings need passthrough")
	}
	f, err := os.Create(w.Mount + "/mapped")
	must(t, err)
	must(t, f.Truncate(4096))
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(m)
	must(t, f.Close())
	w.signal(t, syscall.SIGTERM)
	if got := exitStatus(w); got != 3 || !strings.Contains(w.Log(), "1 mapped") || !strings.Contains(w.Log(), `\"mapped\"`) {
		t.Errorf("exit status %d\n%s", got, w.Log())
	}
}

// TestStopWithACopyOfTheMount checks that a copy of the mount in another mount namespace, in
// which nobody has anything open, does not hold up a stop.
func TestStopWithACopyOfTheMount(t *testing.T) {
	daemontest.NeedRoot(t)
	w := start(t, daemontest.Options{Flags: []string{"--drain", "20s"}})
	elsewhere := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", "echo copied; exec cat")
	in, err := elsewhere.StdinPipe()
	must(t, err)
	out, err := elsewhere.StdoutPipe()
	must(t, err)
	must(t, elsewhere.Start())
	defer elsewhere.Wait()
	defer in.Close()
	_, err = out.Read(make([]byte, 10))
	must(t, err)
	if took := w.signal(t, syscall.SIGTERM); took > 10*time.Second {
		t.Errorf("the daemon ended after %v", took)
	}
	if got := exitStatus(w); got != 0 {
		t.Errorf("exit status %d\n%s", got, w.Log())
	}
}
