package fuseserver

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Files and directories that are open count together, until they have been closed.
func TestOpenFilesAreCounted(t *testing.T) {
	w := newWorld(t, Options{Limits: Limits{Files: 3}})
	a := w.write("a", "text")
	until(t, "what was written is closed", func() bool { return w.m.fs.files.Used(uint32(os.Geteuid())) == 0 })
	var files []*os.File
	for _, path := range []string{a, w.dir, a} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	_, err := os.Open(a)
	wantErrno(t, "one open too many", err, unix.EMFILE)
	_, err = os.Open(w.dir)
	wantErrno(t, "one directory too many", err, unix.EMFILE)
	_, err = os.Create(w.path("b"))
	wantErrno(t, "a new file too many", err, unix.EMFILE)
	if _, err := os.Stat(w.path("b")); !os.IsNotExist(err) {
		t.Errorf("a file that was refused exists: %v", err)
	}
	for _, f := range files {
		f.Close()
	}
	until(t, "all are closed", func() bool { return w.m.fs.files.Used(uint32(os.Geteuid())) == 0 })
	w.want("a", "text")
}

// The kernel sends mapped pages many at a time, when their writer may be gone. However few
// requests are admitted, none of the pages is refused, which would lose it.
func TestMappedPagesAreNotRefused(t *testing.T) {
	const size = 4 << 20
	w := newWorld(t, Options{Passthrough: PassthroughOff, Limits: Limits{Requests: 1}})
	w.write("f", "")
	if err := os.Truncate(w.path("f"), size); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("/proc/self/exe", w.path("f"))
	child.Env = append(os.Environ(), "KV3FS_TEST_CHILD=pages")
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("mapped pages: %s", out)
	}
	got, err := os.ReadFile(w.data + "/f")
	if err != nil || bytes.Count(got, []byte{'x'}) != size/8192 {
		t.Errorf("%d pages have arrived, want %d: %v", bytes.Count(got, []byte{'x'}), size/8192, err)
	}
}

// until waits until something is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
