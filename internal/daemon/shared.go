package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/host"
)

// Sharing says whether other hosts may change the files of the data directory.
type Sharing int

const (
	// SharingAuto goes by the file system.
	SharingAuto Sharing = iota
	SharingOn
	SharingOff
)

// Auto is a timeout of Config.Settings that depends on whether other hosts change the files.
const Auto time.Duration = -1

// sharedTimeout is how long the kernel may believe a name, attributes, or that a name is missing, where
// other hosts change them.
const sharedTimeout = time.Second

// store is what the data directory is on.
type store struct {
	fs     host.FileSystem
	shared bool         // other hosts may change the files
	sync   *atomic.Bool // they see what was written only after fdatasync, as far as is known; nil where they do not exist
	late   host.LateWrites
}

// dataStore looks at what a data directory, a path without symbolic links, is on, and logs what follows.
func dataStore(h host.Host, data string, want Sharing, mode blockio.Mode, log *slog.Logger) (store, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(data, &st); err != nil {
		return store{}, fmt.Errorf("data directory %s: %w", data, err)
	}
	mounts, err := h.Mounts()
	if err != nil {
		log.Warn("the mounts cannot be read: a file system behind FUSE is not recognised", "err", err)
	}
	m, _ := host.Holding(mounts, data)
	return serveOn(host.Recognise(m.Type, int64(st.Type)), m, want, mode, log.With("data", data)), nil
}

// serveOn decides how to serve a directory of a file system that is mounted.
func serveOn(fs host.FileSystem, m host.Mount, want Sharing, mode blockio.Mode, log *slog.Logger) store {
	s := store{fs: fs}
	attrs := []any{"file_system", s.fs.Name, "source", m.Source}
	switch {
	case want == SharingOff && s.fs.Reach != host.OneHost:
		log.Warn("the data directory is served as this host's alone (--shared off): what other hosts change may be seen late or never", attrs...)
		return s
	case want != SharingOn && s.fs.Reach == host.OneHost:
		log.Info("the data directory is this host's alone", attrs...)
		return s
	}
	// Whoever asked for the page cache before --shared was there goes on.
	if want == SharingAuto && s.fs.Reach == host.AnyHosts && mode == blockio.Buffered {
		log.Warn("the data directory is served as this host's alone, because of --io buffered and though its file system is unknown: if other hosts change it, that may be seen late or never; say --shared on or off", attrs...)
		return s
	}
	s.shared, s.sync = true, new(atomic.Bool)
	s.sync.Store(!s.fs.Visible)
	s.late = host.LateWritesOf(s.fs, m, glusterVolume(m))
	if s.fs.Name == host.GlusterFS {
		if glusterWritesThrough(m) {
			s.sync.Store(false)
		} else {
			attrs = append(attrs, "cure", "gluster volume set VOLUME performance.strict-o-direct on, then mount it again, as a whole: writes need no sync any more")
		}
	}
	attrs = append(attrs, "sync", s.sync.Load())
	if s.fs.Reach == host.AnyHosts && want == SharingAuto {
		log.Warn("other hosts may change the data directory, for all that is known of its file system: no page cache is used; say --shared off if only this host does", attrs...)
		return s
	}
	log.Info("other hosts may change the data directory: no page cache is used", attrs...)
	return s
}

// glusterWritesThrough looks at the volume that is mounted.
func glusterWritesThrough(m host.Mount) bool { return host.GlusterWritesThrough(glusterVolume(m)) }

// glusterVolume returns the volume that is mounted, as its client shows it in its root, or "". In other directories, which
// may be mounted, too, anybody can make files with these names.
func glusterVolume(m host.Mount) string {
	if m.Type != "fuse.glusterfs" || m.Root != "/" {
		return ""
	}
	f, err := os.OpenFile(filepath.Join(m.Point, ".meta/graphs/active/volfile"), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	const most = 1 << 20 // a volume of a thousand bricks has half of that
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil || len(text) == most {
		return ""
	}
	return string(text)
}

// timeouts fills in those that are Auto.
func (s store) timeouts(o settings.Options) settings.Options {
	std := settings.Defaults()
	for _, t := range []struct{ is, usual *time.Duration }{
		{&o.AttrTimeout, &std.AttrTimeout}, {&o.EntryTimeout, &std.EntryTimeout}, {&o.NegativeTimeout, &std.NegativeTimeout},
	} {
		switch {
		case *t.is != Auto:
		case s.shared:
			*t.is = sharedTimeout
		default:
			*t.is = *t.usual
		}
	}
	return o
}

// mover returns how rings move bytes.
func (s store) mover(mode blockio.Mode, data string) (blockio.Mover, error) {
	m := blockio.Mover{Mode: mode, Kind: blockio.KindOf(data), Sync: s.sync}
	switch {
	case !s.shared:
	case mode == blockio.Buffered:
		return m, fmt.Errorf("--io buffered, but other hosts may change %s (%s), and the page cache would keep what they have overwritten: use --io auto, or --shared off if only this host changes it", data, s.fs.Name)
	default:
		m.Mode = blockio.Shared
	}
	return m, nil
}

// sharing returns how the mount reads and writes.
func (s store) sharing() tree.Sharing {
	if !s.shared {
		return tree.Sharing{}
	}
	return tree.Sharing{Uncached: true, Sync: s.sync, Forget: blockio.Forget}
}

// passthrough returns whether the kernel may read and write files by itself.
func (s store) passthrough(p fuseserver.Passthrough) fuseserver.Passthrough {
	if s.shared {
		return fuseserver.PassthroughShared
	}
	return p
}
