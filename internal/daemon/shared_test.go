package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/host"
)

// mountedOn is a host on which dir is a mount of a type, whatever it is.
func mountedOn(t *testing.T, dir, kind string) host.Host {
	t.Helper()
	h := host.Host{Root: t.TempDir()}
	table := filepath.Join(h.Root, "proc/self/mountinfo")
	if err := os.MkdirAll(filepath.Dir(table), 0o755); err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:43 / %s rw - %s server:volume rw\n", dir, kind)
	if err := os.WriteFile(table, []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestDataStore(t *testing.T) {
	dir := t.TempDir()
	// A type without an f_type of its own can be told from any directory.
	const distributed = "wekafs"
	for _, c := range []struct {
		kind         string
		want         Sharing
		shared, sync bool
		says         string
	}{
		{"ext4", SharingAuto, false, false, "this host's alone"},
		{"ext4", SharingOff, false, false, "this host's alone"},
		{"ext4", SharingOn, true, false, "other hosts may change"},
		{distributed, SharingAuto, true, true, "sync=true"},
		{distributed, SharingOn, true, true, "WekaFS"},
		{distributed, SharingOff, false, false, "may be seen late or never"},
	} {
		var said bytes.Buffer
		on, err := dataStore(mountedOn(t, dir, c.kind), dir, c.want, blockio.Auto, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil || on.shared != c.shared || (on.sync != nil && on.sync.Load()) != c.sync || !strings.Contains(said.String(), c.says) {
			t.Errorf("%s, %v: %+v, %v; said %s", c.kind, c.want, on, err, said.String())
		}
	}
}

// Whoever has --io buffered on a file system of which nothing is known goes on, and is told.
func TestBufferedOnTheUnknown(t *testing.T) {
	for _, c := range []struct {
		reach   host.Reach
		want    Sharing
		mode    blockio.Mode
		shared  bool
		refused bool
	}{
		{host.AnyHosts, SharingAuto, blockio.Buffered, false, false},
		{host.AnyHosts, SharingAuto, blockio.Auto, true, false},
		{host.AnyHosts, SharingOn, blockio.Buffered, true, true},
		{host.ManyHosts, SharingAuto, blockio.Buffered, true, true},
	} {
		var said bytes.Buffer
		on := serveOn(host.FileSystem{Name: "fuse.own", Reach: c.reach}, host.Mount{}, c.want, c.mode, slog.New(slog.NewTextHandler(&said, nil)))
		_, err := on.mover(c.mode, t.TempDir())
		if on.shared != c.shared || (err != nil) != c.refused {
			t.Errorf("%+v: %+v, %v", c, on, err)
		}
		if told := strings.Contains(said.String(), "level=WARN") && strings.Contains(said.String(), "because of --io buffered"); told != !c.shared {
			t.Errorf("%+v: said %s", c, said.String())
		}
	}
}

func TestSharedChangesModes(t *testing.T) {
	dir := t.TempDir()
	given := settings.Defaults()
	given.AttrTimeout, given.EntryTimeout, given.NegativeTimeout = Auto, 7*time.Second, Auto
	shared, alone := store{shared: true, sync: new(atomic.Bool)}, store{}
	shared.sync.Store(true)
	if o := shared.timeouts(given); o.AttrTimeout != time.Second || o.EntryTimeout != 7*time.Second || o.NegativeTimeout != time.Second {
		t.Errorf("shared: %v, %v, %v", o.AttrTimeout, o.EntryTimeout, o.NegativeTimeout)
	}
	if o := alone.timeouts(given); o.AttrTimeout != 30*time.Second || o.EntryTimeout != 7*time.Second || o.NegativeTimeout != 5*time.Second {
		t.Errorf("alone: %v, %v, %v", o.AttrTimeout, o.EntryTimeout, o.NegativeTimeout)
	}
	for _, mode := range []blockio.Mode{blockio.Auto, blockio.Direct} {
		if m, err := shared.mover(mode, dir); err != nil || m.Mode != blockio.Shared || m.Sync != shared.sync {
			t.Errorf("shared, %v: %+v, %v", mode, m, err)
		}
		if m, err := alone.mover(mode, dir); err != nil || m.Mode != mode || m.Sync != nil {
			t.Errorf("alone, %v: %+v, %v", mode, m, err)
		}
	}
	if _, err := shared.mover(blockio.Buffered, dir); err == nil || !strings.Contains(err.Error(), "--shared off") {
		t.Errorf("shared, buffered: %v", err)
	}
	if p := shared.passthrough(fuseserver.PassthroughAuto); p != fuseserver.PassthroughShared {
		t.Errorf("passthrough %v", p)
	}
	if p := alone.passthrough(fuseserver.PassthroughAuto); p != fuseserver.PassthroughAuto {
		t.Errorf("passthrough %v", p)
	}
}

// A volume is known by what its client shows of it.
func TestGlusterWritesThrough(t *testing.T) {
	point := t.TempDir()
	volume := host.Mount{Point: point, Root: "/", Type: "fuse.glusterfs"}
	if glusterWritesThrough(volume) {
		t.Error("a mount that shows nothing is trusted")
	}
	dir := filepath.Join(point, ".meta/graphs/active")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"volume v\n    type performance/write-behind\nend-volume\n":                                     false,
		"volume v\n    type performance/write-behind\n    option strict-O_DIRECT on\nend-volume\n":      true,
		"volume v\n    type debug/io-stats\nend-volume\n":                                               true,
		"volume v\n    type debug/io-stats\nend-volume\n" + strings.Repeat("# a line of 16 b\n", 1<<16): false, // cut short
	} {
		if err := os.WriteFile(filepath.Join(dir, "volfile"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := glusterWritesThrough(volume); got != want {
			t.Errorf("%t for %.80q", got, text)
		}
	}

	// A client can make such a file elsewhere.
	file := filepath.Join(dir, "volfile")
	if err := os.WriteFile(file, []byte("volume v\nend-volume\n"), 0o644); err != nil || !glusterWritesThrough(volume) {
		t.Fatal("not believed: ", err)
	}
	part, other := volume, volume
	part.Root, other.Type = "/a", "fuse.juicefs"
	for _, m := range []host.Mount{part, other} {
		if glusterWritesThrough(m) {
			t.Errorf("a client's file is believed: %+v", m)
		}
	}
	if err := os.Rename(file, file+"2"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("volfile2", file); err != nil || glusterWritesThrough(volume) {
		t.Error("a symbolic link is believed: ", err)
	}
	if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o644)); err != nil || glusterWritesThrough(volume) {
		t.Error("a FIFO is believed: ", err)
	}
}
