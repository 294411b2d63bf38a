package limits

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
	"github.com/kv3fs/kv3fs/usrbio"
)

func restartPrograms() map[string]hostile.Program {
	return map[string]hostile.Program{"fill-state": fillState}
}

// fillState has the daemon note all that a user can: files with long names that it keeps open, buffers and rings. It reports and waits.
func fillState(s *hostile.Self) error {
	var dir string
	if err := s.Args(&dir); err != nil {
		return err
	}
	const files, objects = 500, 40
	for i := range files {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(strings.Repeat("long", 50), i)))
		if err != nil {
			return err
		}
		defer f.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), hostile.Patience)
	defer cancel()
	m, err := usrbio.Open(ctx, dir)
	if err != nil {
		return err
	}
	defer m.Close(context.Background())
	for range objects {
		if _, err := m.NewIov(ctx, 4096, usrbio.IovOptions{}); err != nil {
			return err
		}
		if _, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 64}); err != nil {
			return err
		}
	}
	if err := s.Report("filled"); err != nil {
		return err
	}
	<-s.Stopped()
	return nil
}

// TestStateOfRestartsIsShared checks that what clients have the daemon keep for its successor takes a bounded part of the tmpfs,
// and that a user who takes all it can get loses only its own.
func TestStateOfRestartsIsShared(t *testing.T) {
	if testing.Short() {
		t.Skip("hostile users need a daemon of their own")
	}
	daemontest.NeedRoot(t)
	const size, part = 4 << 20, 8
	top := daemontest.NewDir(t)
	if err := unix.Mount("tmpfs", top, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skip("no tmpfs: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
	d := daemontest.ServeWith(t, daemontest.Options{Hold: true, Flags: []string{"--drain", "0s", "--pages-listen", "off", "--restart-state", filepath.Join(top, "state")}})
	greedy, honest := hostile.NewUser(t), hostile.NewUser(t)
	dir := filepath.Join(d.Data, "greedy")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	g := hostile.Start(t, greedy, "fill-state", filepath.Join(d.Mount, "greedy"))
	var said string
	g.Await(&said)
	var st unix.Statfs_t
	if err := unix.Statfs(top, &st); err != nil {
		t.Fatal(err)
	}
	const own = 128 << 10 // of the daemon itself, and directories
	if used := int64(st.Blocks-st.Bfree) * st.Bsize; used > size/part+own {
		t.Errorf("the state takes %d bytes of %d", used, size)
	}
	for end := time.Now().Add(hostile.Patience); !strings.Contains(d.Log(), "a user has used up its share of the state of restarts"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the log does not say so:\n%s", d.Log())
		}
	}
	h := hostile.Start(t, honest, "read", reads{Path: newFile(t, d, honest, 1<<20, 3), Step: 3, Bytes: 4096, Depth: 8, Limit: hostile.Patience})
	h.Await(&said)
	for n := 2; n < 4; n++ {
		time.Sleep(50 * time.Millisecond) // in the middle of its reads, mostly
		if err := unix.Kill(d.Server(t), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		d.AwaitServed(t, n)
	}
	if err := os.WriteFile(filepath.Join(d.Mount, "greedy", "another"), nil, 0o600); err != nil {
		t.Error(err)
	}
	if strings.Contains(d.Log(), "cannot be taken over") {
		t.Errorf("the mount was cut off:\n%s", d.Log())
	}
	var got readResult
	done := make(chan error, 1)
	go func() { done <- h.Stop() }()
	h.Await(&got)
	if err := <-done; err != nil {
		t.Error(err)
	}
	got.check(t, "an honest client")
	g.Kill()
}
