package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// namedHost writes a program that runs kv3fs in namespaces of its own, as a container does,
// with a host name.
func namedHost(t *testing.T, name, namespaces string) string {
	t.Helper()
	if out, err := exec.Command("unshare", append(strings.Fields(namespaces), "hostname", name)...).CombinedOutput(); err != nil {
		daemontest.NotTested(t, fmt.Sprintf("namespaces: %v: %s", err, out))
	}
	program := filepath.Join(daemontest.NewDir(t), name)
	script := fmt.Sprintf("#!/bin/sh\nexec unshare %s sh -c 'hostname %s; exec %s \"$@\"' sh \"$@\"\n", namespaces, name, kv3fs(t))
	must(t, os.WriteFile(program, []byte(script), 0o755))
	return program
}

// TestContainersOfOneKernel checks that a data directory is served once on a kernel, also by
// daemons in different UTS, PID and mount namespaces, and that the next one finds the state of
// one that was killed under another host name: its page index, and the semaphores to remove.
func TestContainersOfOneKernel(t *testing.T) {
	daemontest.NeedRoot(t)
	socket := filepath.Join(daemontest.NewDir(t), "pages")
	flags := []string{"--drain", "300ms", "--pages-listen", "unix:" + socket}
	w := start(t, daemontest.Options{Flags: flags, Binary: namedHost(t, "pod-one", "--uts")})
	apart := namedHost(t, "pod-two", "--uts --mount --pid --fork --kill-child")
	out, err := exec.CommandContext(withDeadline(t, patience/2), apart, "serve", "--data", w.Data, "--mount", daemontest.NewDir(t)+"/mnt", "--pages-listen", "off").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "served already") || !strings.Contains(string(out), "on pod-one") {
		t.Errorf("a second daemon in other namespaces: %v\n%s", err, out)
	}
	semaphores := semaphoresOf(t, w)
	w.Kill()
	next := start(t, daemontest.Options{Data: w.Data, Mount: w.Mount, Flags: flags, Binary: namedHost(t, "pod-three", "--uts")})
	for _, s := range semaphores {
		if _, err := os.Lstat(s); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%s still exists: %v", s, err)
		}
	}
	if dirs := namesIn(t, filepath.Join(w.Data, ".kv3fs", "hosts")); len(dirs) != 1 {
		t.Errorf("the next daemon has begun a page index of its own: %v\n%s", dirs, next.Log())
	}
}

// TestReadonlyDataDirectory checks that --readonly serves a data directory that cannot be
// written to, where there is state of another daemon and where there is none.
func TestReadonlyDataDirectory(t *testing.T) {
	daemontest.NeedRoot(t)
	for _, used := range []bool{false, true} {
		data := daemontest.NewDir(t)
		write(t, data+"/f", []byte("there"))
		if used {
			must(t, start(t, daemontest.Options{Data: data}).Stop())
		}
		must(t, unix.Mount(data, data, "", unix.MS_BIND, ""))
		defer unix.Unmount(data, unix.MNT_DETACH)
		must(t, unix.Mount("", data, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		w := start(t, daemontest.Options{Data: data, Flags: []string{"--readonly", "--drain", "300ms"}})
		if text, err := os.ReadFile(w.Mount + "/f"); err != nil || string(text) != "there" {
			t.Errorf("%q, %v", text, err)
		}
		wantErrno(t, "a write", os.WriteFile(w.Mount+"/g", nil, 0o644), unix.EROFS)
		l := newGoLibrary(t, w)
		f, b := l.open(w.Mount+"/f", "rdonly"), l.buffer(4096, 0)
		expect(t, 5, l.ring(ringOptions{entries: 4}), b, 0, f, 0, 4096)
		if !used && strings.Contains(strings.Join(namesIn(t, w.Mount), " "), ".kv3fs") {
			t.Error(".kv3fs can be seen")
		}
		must(t, w.Stop())
		if !strings.Contains(w.Log(), "cannot be written to") {
			t.Errorf("the log does not say it:\n%s", w.Log())
		}
	}
}
