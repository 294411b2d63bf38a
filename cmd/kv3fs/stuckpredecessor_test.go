package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// A daemon that was killed and is in a call to a disk that hangs has its locks until that ends. The next one waits for it, and says so.
func TestStartWaitsForAStuckPredecessor(t *testing.T) {
	skipWithoutFUSE(t)
	daemontest.NeedRoot(t)
	disk := faultdir.New(t)
	const far = 1 << 20 // no file of the daemon is half as long
	file, mount := filepath.Join(disk.Path, "f"), filepath.Join(t.TempDir(), "mnt")
	if err := os.WriteFile(file, make([]byte, far+1), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	serve := []string{"serve", "--data", disk.Path, "--mount", mount, "--shared", "off", "--passthrough", "off", "--checksums", "off", "--drain", "0s", "--pages-listen", "off", "--admin-listen", "off"}
	first := runAs(t, detached, nil, binary(t), "msg=serving ", serve...)
	hangs := disk.Hang(func(c faultdir.Call) bool { return c.Op == "read" && c.Offset >= far/2 })
	read := make(chan error, 1)
	go func() {
		f, err := os.Open(filepath.Join(mount, "f"))
		if err == nil {
			_, err = f.ReadAt(make([]byte, 1), far)
			_ = f.Close() // of a mount that has ended
		}
		read <- err
	}()
	select {
	case <-hangs:
	case <-time.After(time.Minute):
		t.Fatal("the disk does not hang")
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	second := runAs(t, detached, nil, binary(t), `msg="waiting for the daemon before`, serve...)
	disk.Heal()
	second.awaitSaid(t, "msg=serving ", 1)
	<-first.exited
	<-read
	second.stop(t)
}
