package daemon

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// mountTmpfs mounts a tmpfs until the test ends.
func mountTmpfs(t *testing.T, dir, options string) {
	t.Helper()
	daemontest.NeedRoot(t)
	if err := unix.Mount("kv3fs-test", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// fill leaves no room in a tmpfs.
func fill(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !noRoom(err) {
		t.Fatalf("fill a small tmpfs: %v", err)
	}
}

// A new file system in the place of another one is another data directory, although its root has the same inode and often the same device.
func TestIdentityOfNewFileSystem(t *testing.T) {
	dir := t.TempDir()
	seen := map[string]bool{}
	for range 3 {
		mountTmpfs(t, dir, "size=1m,mode=700")
		of, _, err := restartIdentity(dir, hostID{Boot: "boot", Identity: "host"})
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := restartIdentity(dir, hostID{Boot: "boot", Identity: "host"})
		if err != nil || again != of {
			t.Errorf("%v, asked again %v (%v)", of, again, err)
		}
		if seen[of.Data] {
			t.Errorf("two file systems are %q", of.Data)
		}
		seen[of.Data] = true
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// What clients set takes effect also where it cannot be kept, and what was kept before is forgotten then.
func TestSettingsInFullState(t *testing.T) {
	at := t.TempDir()
	mountTmpfs(t, at, "size=64k,mode=700")
	dir, err := restart.Open(filepath.Join(at, "state"), restart.Identity{Boot: "b", Data: "d", Format: restartFormat})
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	set := settings.New(settings.Defaults())
	log := &logged{}
	if err := keepSettings(dir, set, slog.New(slog.NewTextHandler(log, nil))); err != nil {
		t.Fatal(err)
	}
	fill(t, at)
	if err := set.Set(7, "usr.readonly", "true"); err != nil || !set.Readonly(7) {
		t.Errorf("usr.readonly = true: %v; readonly: %v", err, set.Readonly(7))
	}
	log.await(t, "what clients have set ends with this daemon", 1)
	if err := keepSettings(dir, settings.New(settings.Defaults()), slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("a start with a full directory: %v", err)
	}
	if g, err := newGrants(dir, false, slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("a start with a full directory: %v", err)
	} else if err := g.close(); err != nil {
		t.Error(err)
	}
}

// A full directory for the state of restarts does not keep a daemon from serving.
func TestServesWithFullState(t *testing.T) {
	for _, prior := range []bool{false, true} {
		at := t.TempDir()
		mountTmpfs(t, at, "size=64k,mode=700")
		data, mount := t.TempDir(), filepath.Join(t.TempDir(), "mnt")
		state := filepath.Join(at, "state")
		serve := func() error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ready := false
			err := Run(ctx, Config{
				DataDir: data, MountPoint: mount, Identity: "test", RestartState: state,
				Mount: fuseserver.Options{Cluster: "full"}, Settings: settings.Defaults(), Log: slog.New(slog.DiscardHandler),
			}, func(string) { ready = true; cancel() })
			if !ready {
				t.Errorf("with state of before: %v; it does not serve: %v", prior, err)
			}
			return err
		}
		if prior {
			me, err := thisHost(host.Local(), "test")
			if err != nil {
				t.Fatal(err)
			}
			of, _, err := restartIdentity(data, me)
			if err != nil {
				t.Fatal(err)
			}
			dir, err := restart.Open(state, of)
			if err != nil {
				t.Fatal(err)
			}
			if err := dir.Close(); err != nil {
				t.Fatal(err)
			}
		}
		fill(t, at)
		if err := serve(); err != nil {
			t.Errorf("with state of before: %v: %v", prior, err)
		}
	}
}

// A file that is looked up in a data directory that hangs holds up nobody who opens or closes another one.
func TestInheritedGrantThatHangs(t *testing.T) {
	at, err := os.MkdirTemp("/dev/shm", "kv3fs-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(at) })
	dir, err := restart.Open(filepath.Join(at, "state"), restart.Identity{Boot: "b", Data: "d", Format: restartFormat})
	if err != nil {
		t.Skipf("/dev/shm is no tmpfs: %v", err)
	}
	defer dir.Close()
	quiet := slog.New(slog.DiscardHandler)
	before, err := newGrants(dir, false, quiet)
	if err != nil {
		t.Fatal(err)
	}
	before.Granted(tree.Grant{Ino: 5, UID: 7, Path: []byte("f")})
	if err := before.close(); err != nil {
		t.Fatal(err)
	}
	g, err := newGrants(dir, false, quiet)
	if err != nil {
		t.Fatal(err)
	}
	hangs, answers, released := make(chan struct{}), make(chan struct{}), make(chan struct{})
	held := make(chan bool)
	go func() {
		held <- g.regrant(5, func(tree.Grant) (func(), error) {
			close(hangs)
			<-answers
			return func() { close(released) }, nil
		})
	}()
	<-hangs
	others := make(chan struct{})
	go func() {
		g.Ended(g.Granted(tree.Grant{Ino: 6, UID: 8}))
		g.keepOnly(func(uint32) bool { return false })
		close(others)
	}()
	select {
	case <-others:
	case <-time.After(time.Minute):
		t.Fatal("an open of another file waits for the one that hangs")
	}
	close(answers)
	if <-held {
		t.Error("a grant holds that has ended meanwhile")
	}
	<-released
	if err := g.close(); err != nil {
		t.Error(err)
	}
}

// Without --restart-state nothing outlives the daemon.
func TestOffKeepsNoState(t *testing.T) {
	for _, choice := range []string{"", RestartOff} {
		if dir, err := restartState(t.Context(), choice, t.TempDir(), hostID{Boot: "b"}, nil, slog.New(slog.DiscardHandler)); dir != nil || err != nil {
			t.Errorf("%q: %v, %v", choice, dir, err)
		}
	}
}
