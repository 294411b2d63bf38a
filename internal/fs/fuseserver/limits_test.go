package fuseserver

import (
	"os"
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

// until waits until something is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
