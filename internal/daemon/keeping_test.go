package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// A stop does not wait for those who wait for room, and is none that left calls behind.
func TestStopWhileClientsWaitForRoom(t *testing.T) {
	daemontest.NeedMounts(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	block := filepath.Join(data, "aa", "aa0000000000000000000000000000aa")
	if err := os.MkdirAll(filepath.Dir(block), 0o755); err != nil {
		t.Fatal(err)
	}
	const capacity = 1 << 20
	if err := os.WriteFile(block, make([]byte, capacity-64<<10), 0o644); err != nil { // and two directories
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{
			DataDir: data, MountPoint: filepath.Join(dir, "mnt"), Mount: fuseserver.Options{Cluster: "keeping"}, Settings: settings.Defaults(),
			// The block may go before the client's patience is over, so it waits.
			Keeping: Keeping{Capacity: keeper.Limit{Bytes: capacity}, Grace: 20 * time.Second},
			Drain:   time.Millisecond, Log: slog.New(slog.DiscardHandler),
		}, func(point string) { ready <- point })
	}()
	var mount string
	select {
	case mount = <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	if _, err := os.Stat(block); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(filepath.Join(mount, "waits"), unix.O_CREAT|unix.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	written := make(chan error, 1)
	go func() {
		_, err := unix.Pwrite(fd, make([]byte, capacity/8), 0)
		written <- err
	}()
	select {
	case err := <-written:
		t.Fatalf("a write does not wait: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	cancel()
	if err := <-done; err != nil && !errors.Is(err, ErrCutOff) {
		t.Error(err)
	}
	if err := <-written; err == nil {
		t.Error("the write succeeded, so it did not wait")
	}
}
