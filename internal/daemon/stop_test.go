package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// A stop ends although the data directory hangs, with a call of an operator, the keeper and its files in it; the mount is gone then.
func TestStopOverHungDirectory(t *testing.T) {
	daemontest.NeedRoot(t)
	d := faultdir.New(t)
	oldBlocks(t, d.Beneath, 0, 8)
	mount := filepath.Join(t.TempDir(), "mnt")
	log := &logged{}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{
			DataDir: d.Path, MountPoint: mount, Identity: "test", Mount: fuseserver.Options{Cluster: "stop"}, Settings: settings.Defaults(),
			Keeping: Keeping{Capacity: keeper.Limit{Bytes: 1 << 30}}, Checksums: true,
			Drain: time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil)), stopGrace: 3 * time.Second,
		}, func(string) { close(ready) })
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	log.await(t, "scanned the data directory", 1)
	sockets, err := filepath.Glob(filepath.Join(d.Beneath, ".kv3fs/hosts/*"))
	if err != nil || len(sockets) != 1 {
		t.Fatal(sockets, err)
	}
	client, err := admin.Dial(t.Context(), []string{filepath.Join(d.Path, ".kv3fs/hosts", filepath.Base(sockets[0]))}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const name = "00000000000000000000000000000000"
	hanging := d.Hang(func(faultdir.Call) bool { return true })
	asked := make(chan error, 1)
	go func() {
		_, err := client.Describe(t.Context(), "00/"+name)
		asked <- err
	}()
	<-hanging
	cancel()
	err = <-done
	if !errors.Is(err, ErrStuck) || !strings.Contains(err.Error(), d.Path) {
		t.Errorf("the stop ends with %v", err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(mounts), mount) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the mount is there still")
		}
	}
	// The process would have ended by now. Here the stop goes on, and the call is answered or cut off, whichever is first.
	d.Heal()
	<-asked
}
